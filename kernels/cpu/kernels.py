"""The operators of kernel set "invariant", C++ backend: shapes and dtypes checked here, arithmetic in the library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from detharness.errors import KernelError
from detharness.kernels.contract import (
    DecoderStack,
    KernelName,
    KernelSet,
    PagedBatch,
    SampledRows,
    SamplingRows,
)
from detharness.kernels.cpu.arena import Arena
from detharness.kernels.cpu.build import SOURCES, built_library, recipe
from detharness.kernels.cpu.fused import FusedForward, check_ids
from detharness.kernels.cpu.library import Library, open_library
from detharness.kernels.cpu.packed import PackedLinear, is_bf16, pack
from detharness.kernels.cpu.plans import attention_plans
from detharness.kernels.pytorch.pointwise import norm_plan, softmax_plan
from detharness.records.digests import sha256_file, sha256_value


def load(vector_bits: int | None = None) -> CppKernels:
    """Build or reuse the library for this host and return its kernels; KernelError where that cannot be.

    ``vector_bits`` restricts the build to 128, 256 or 512-bit registers: other speed, same bits.
    """
    return CppKernels(open_library(built_library(recipe(vector_bits))))


class CppKernels(KernelSet):
    """Every output row depends on its own input row, position, weights and KV prefix alone; see the contract.

    Arithmetic is IEEE fp32 with subnormals kept on every thread, whatever mode the caller's thread is in.
    """

    name: KernelName = "invariant"
    backend = "cpp"

    def __init__(self, library: Library) -> None:
        self._library = library
        self._arena = Arena()
        self._plans: set[str] = set()

    def pack_linear(
        self, weights: Sequence[Tensor], biases: Sequence[Tensor | None], dtype: torch.dtype | None = None
    ) -> PackedLinear:
        """See the contract. Weights keep their dtype, whatever that of the rows they will meet."""
        return pack(self._library, self._arena, weights, biases)

    def linear(self, x: Tensor, packed: Any) -> Tensor:
        """See the contract."""
        if x.dim() != 2 or x.shape[1] != packed.plan.length:
            raise KernelError(f"linear expects rows of {packed.plan.length} elements, got shape {tuple(x.shape)}")
        x = _dense_rows(x)
        rows, plan, bias = x.shape[0], packed.plan, packed.bias
        out = torch.empty(rows, packed.columns, dtype=x.dtype)
        self._plans.add(plan.id)
        self._library.linear(
            out.data_ptr(),
            x.data_ptr(),
            is_bf16(x, "linear"),
            x.stride(0),
            packed.data.data_ptr(),
            packed.data.dtype == torch.bfloat16,
            None if bias is None else bias.data_ptr(),
            rows,
            packed.columns,
            plan.length,
            plan.leaves,
            plan.leaf_length,
            torch.get_num_threads(),
        )
        return out

    def embedding(self, ids: Tensor, packed: Any, dtype: torch.dtype) -> Tensor:
        """See the contract."""
        ids, plan = ids.contiguous(), packed.plan
        check_ids(ids, packed)
        out = torch.empty(len(ids), plan.length, dtype=dtype)
        self._library.embedding(
            out.data_ptr(),
            is_bf16(out, "embedding"),
            ids.data_ptr(),
            len(ids),
            packed.data.data_ptr(),
            packed.data.dtype == torch.bfloat16,
            plan.length,
            plan.leaves,
            plan.leaf_length,
            torch.get_num_threads(),
        )
        return out

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See the contract. ``x`` [M, K] or [M, H, K], M rows at any distance."""
        return self._norm(x, None, weight, eps)[0]

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """See the contract."""
        return self._norm(x, residual.contiguous(), weight, eps)

    def _norm(self, x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        x = _dense_rows(x)
        if residual is not None and (residual.shape != x.shape or residual.dtype != x.dtype):
            raise KernelError("x and residual must have one shape and dtype")
        length = x.shape[-1]
        outer = x.shape[0]
        plan = norm_plan(length)
        out = torch.empty(x.shape, dtype=x.dtype)
        total = out if residual is None else torch.empty_like(out)
        self._plans.add(plan.id)
        self._library.rms_norm(
            out.data_ptr(),
            total.data_ptr(),
            x.data_ptr(),
            None if residual is None else residual.data_ptr(),
            weight.contiguous().data_ptr(),
            is_bf16(x, "rms_norm"),
            is_bf16(weight, "rms_norm weight"),
            outer,
            x.stride(0),
            x.numel() // (outer * length) if outer else 1,
            length,
            plan.leaves,
            plan.leaf_length,
            eps,
            torch.get_num_threads(),
        )
        return out, total

    def rope(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """See the contract."""
        cos, sin = cos.contiguous(), sin.contiguous()
        return self._rotate(q, cos, sin), self._rotate(k, cos, sin)

    def _rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = _dense_rows(x)
        rows, heads, width = x.shape
        if cos.dtype != torch.float32 or cos.shape != (rows, width // 2) or sin.shape != cos.shape or width % 2:
            raise KernelError(f"rope expects fp32 cos and sin of shape ({rows}, {width // 2})")
        out = torch.empty(x.shape, dtype=x.dtype)
        self._library.rope(
            out.data_ptr(),
            x.data_ptr(),
            is_bf16(x, "rope"),
            cos.data_ptr(),
            sin.data_ptr(),
            rows,
            x.stride(0),
            heads,
            width,
            torch.get_num_threads(),
        )
        return out

    def write_kv(self, k: Tensor, v: Tensor, k_pages: Tensor, v_pages: Tensor, slots: Tensor) -> None:
        """See the contract."""
        slots = slots.contiguous()
        for x, pages in ((_dense_rows(k), k_pages), (_dense_rows(v), v_pages)):
            if x.dtype != pages.dtype or x.shape[1:] != pages.shape[2:] or not pages.is_contiguous():
                raise KernelError("keys, values and their dense pages must share dtype, heads and head size")
            size = x.element_size()
            self._library.write_kv(
                pages.data_ptr(),
                x.data_ptr(),
                slots.data_ptr(),
                x.shape[0],
                x.stride(0) * size,
                x.shape[1] * x.shape[2] * size,
            )

    def attention(
        self, q: Tensor, k_pages: Tensor, v_pages: Tensor, batch: PagedBatch, scale: float, window: int | None
    ) -> Tensor:
        """See the contract."""
        q = _dense_rows(q)
        rows, heads, width = q.shape
        kv_heads = k_pages.shape[2]
        if not (k_pages.is_contiguous() and v_pages.is_contiguous() and k_pages.dtype == v_pages.dtype):
            raise KernelError("key and value pages must be dense and share one dtype")
        if heads % kv_heads or k_pages.shape[3] != width:
            raise KernelError(f"{heads} query heads of {width} do not fit pages of shape {tuple(k_pages.shape)}")
        self._plans.update(attention_plans(width))
        out = torch.empty(rows, heads, width, dtype=q.dtype)
        positions, starts = batch.positions.contiguous(), batch.row_starts.contiguous()
        tables = batch.block_tables.contiguous()
        self._library.attention(
            out.data_ptr(),
            q.data_ptr(),
            k_pages.data_ptr(),
            v_pages.data_ptr(),
            positions.data_ptr(),
            starts.data_ptr(),
            tables.data_ptr(),
            tables.shape[0],
            tables.shape[1],
            batch.page_size,
            heads,
            kv_heads,
            width,
            q.stride(0),
            scale,
            window or 0,
            is_bf16(q, "attention"),
            is_bf16(k_pages, "pages"),
            torch.get_num_threads(),
        )
        return out

    def silu_and_mul(self, gate_up: Tensor) -> Tensor:
        """See the contract."""
        gate_up = _dense_rows(gate_up)
        rows, both = gate_up.shape
        out = torch.empty(rows, both // 2, dtype=gate_up.dtype)
        self._library.silu_and_mul(
            out.data_ptr(),
            gate_up.data_ptr(),
            is_bf16(gate_up, "silu_and_mul"),
            rows,
            gate_up.stride(0),
            both // 2,
            torch.get_num_threads(),
        )
        return out

    def log_softmax(self, logits: Tensor) -> Tensor:
        """See the contract."""
        if logits.dtype != torch.float32 or logits.dim() != 2:
            raise KernelError(f"log_softmax expects fp32 [M, V], got {logits.dtype} {tuple(logits.shape)}")
        logits = _dense_rows(logits)
        rows, length = logits.shape
        plan = softmax_plan(length)
        self._plans.add(plan.id)
        out = torch.empty(rows, length)
        self._library.log_softmax(
            out.data_ptr(),
            logits.data_ptr(),
            rows,
            logits.stride(0),
            length,
            plan.leaves,
            plan.leaf_length,
            torch.get_num_threads(),
        )
        return out

    def sample(self, logits: Tensor, rows: SamplingRows, *, want_processed: bool) -> SampledRows:
        """See ``kernels.sampling``: the same tokens and bits."""
        if logits.dtype != torch.float32 or logits.dim() != 2:
            raise KernelError(f"sampling expects fp32 [M, V], got {logits.dtype} {tuple(logits.shape)}")
        logits = _dense_rows(logits)
        count, vocabulary = logits.shape
        limit = min(rows.vocab_limit, vocabulary)
        plan = softmax_plan(limit)
        if want_processed:
            self._plans.add(plan.id)
        tokens = torch.empty(count, dtype=torch.int64)
        processed = torch.empty(count, vocabulary) if want_processed else None
        keys = [
            column.contiguous()
            for column in (
                rows.temperature,
                rows.top_k,
                rows.top_p,
                rows.min_p,
                rows.seed,
                rows.sample_index,
                rows.position,
            )
        ]
        self._library.sample(
            tokens.data_ptr(),
            None if processed is None else processed.data_ptr(),
            logits.data_ptr(),
            count,
            logits.stride(0),
            vocabulary,
            limit,
            *(column.data_ptr() for column in keys),
            plan.leaves,
            plan.leaf_length,
            torch.get_num_threads(),
        )
        return SampledRows(tokens, processed)

    def fuse(self, stack: DecoderStack) -> FusedForward:
        """See the contract."""
        return FusedForward(self._library, stack, self._plans)

    def dispatch_borders(self, length: int) -> tuple[int, ...]:
        """Multiples of the largest row tile, and the block of rows that is worked through before the next."""
        most, block = self._library.row_tile(), self._library.row_block(length)
        return (most, 2 * most, 5 * most, most * block)

    def identity(self) -> str:
        """The recipe's key: sources, compiler, flags; and the Python that calls them."""
        sources = {path.name: sha256_file(path) for path in sorted(SOURCES.glob("*.py"))}
        return sha256_value({"library": self._library.path.stem, "sources": sources})

    def plan_ids(self) -> tuple[str, ...]:
        """Ids of the reduction plans used so far, sorted."""
        return tuple(sorted(self._plans))


def _dense_rows(x: Tensor) -> Tensor:
    """``x`` with each row dense; rows themselves may stand apart, as slices of a packed QKV output do."""
    dense = 1
    for size, stride in zip(reversed(x.shape[1:]), reversed(x.stride()[1:]), strict=True):
        if stride != dense and size != 1:
            return x.contiguous()
        dense *= size
    return x
