"""The whole decoder in one call into the library, for steps that nobody observes."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from detharness.errors import KernelError
from detharness.kernels.contract import DecoderStack, ForwardStep
from detharness.kernels.cpu.library import Library
from detharness.kernels.cpu.packed import PackedLinear
from detharness.kernels.cpu.plans import attention_plans
from detharness.kernels.pytorch.pointwise import norm_plan

_INT = ctypes.c_int64
_POINTER = ctypes.c_void_p


class _Linear(ctypes.Structure):
    _fields_ = (
        ("data", _POINTER),
        ("bias", _POINTER),
        ("bf16", _INT),
        ("columns", _INT),
        ("length", _INT),
        ("leaves", _INT),
        ("leaf_length", _INT),
    )


class _Norm(ctypes.Structure):
    _fields_ = (("weight", _POINTER), ("bf16", _INT), ("length", _INT), ("leaves", _INT), ("leaf_length", _INT))


class _Layer(ctypes.Structure):
    _fields_ = (
        *((name, _Norm) for name in ("input_norm", "q_norm", "k_norm", "mlp_norm")),
        *((name, _Linear) for name in ("qkv", "output", "gate_up", "down")),
        ("window", _INT),
    )


class _Decoder(ctypes.Structure):
    _fields_ = (
        ("table", _Linear),
        ("head", _Linear),
        ("final_norm", _Norm),
        *((name, _INT) for name in ("layers", "heads", "kv_heads", "width", "bf16")),
        ("eps", ctypes.c_float),
        ("scale", ctypes.c_float),
    )


class _Step(ctypes.Structure):
    _fields_ = (
        *(
            (name, _POINTER)
            for name in ("token_ids", "positions", "slots", "row_starts", "tables", "logit_rows", "cos", "sin")
        ),
        *((name, _INT) for name in ("rows", "requests", "table_width", "page_size", "logit_count", "threads")),
    )


class FusedForward:
    """A ``DecoderStack`` as the library reads it. Calling it gives the bits of the operators called one by one."""

    def __init__(self, library: Library, stack: DecoderStack, used_plans: set[str]) -> None:
        self._library = library
        self._stack = stack
        self._used_plans = used_plans
        self._plans = set(attention_plans(stack.head_dim))
        self._kept: list[Tensor] = []  # The structures hold addresses only.
        self._layers = (_Layer * len(stack.layers))()
        for to, layer in zip(self._layers, stack.layers, strict=True):
            to.input_norm, to.mlp_norm = self._norm(layer.input_norm), self._norm(layer.mlp_norm)
            to.q_norm, to.k_norm = self._norm(layer.q_norm), self._norm(layer.k_norm)
            to.qkv, to.output = self._linear(layer.qkv), self._linear(layer.output)
            to.gate_up, to.down = self._linear(layer.gate_up), self._linear(layer.down)
            to.window = layer.window or 0
        self._decoder = _Decoder(
            table=self._linear(stack.table),
            head=self._linear(stack.head),
            final_norm=self._norm(stack.final_norm),
            layers=len(stack.layers),
            heads=stack.heads,
            kv_heads=stack.kv_heads,
            width=stack.head_dim,
            bf16=stack.dtype == torch.bfloat16,
            eps=stack.eps,
            scale=stack.scale,
        )

    def _linear(self, packed: PackedLinear) -> _Linear:
        self._kept += [packed.data] if packed.bias is None else [packed.data, packed.bias]
        plan = packed.plan
        self._plans.add(plan.id)
        return _Linear(
            data=packed.data.data_ptr(),
            bias=None if packed.bias is None else packed.bias.data_ptr(),
            bf16=packed.data.dtype == torch.bfloat16,
            columns=packed.columns,
            length=plan.length,
            leaves=plan.leaves,
            leaf_length=plan.leaf_length,
        )

    def _norm(self, weight: Tensor | None) -> _Norm:
        if weight is None:
            return _Norm(weight=None)
        weight = weight.contiguous()
        self._kept.append(weight)
        plan = norm_plan(len(weight))
        self._plans.add(plan.id)
        return _Norm(
            weight=weight.data_ptr(),
            bf16=weight.dtype == torch.bfloat16,
            length=plan.length,
            leaves=plan.leaves,
            leaf_length=plan.leaf_length,
        )

    def __call__(self, step: ForwardStep, keys: Sequence[Tensor], values: Sequence[Tensor]) -> Tensor:
        """Write the rows' keys and values into the pages; return logits [logit rows, V] in the activations' dtype."""
        batch = step.batch
        check_ids(step.token_ids, self._stack.table)
        self._used_plans.update(self._plans)
        for pages in (*keys, *values):
            if pages.dtype != self._stack.dtype or not pages.is_contiguous():
                raise KernelError("key and value pages must be dense and of the activations' dtype")
        operands = [
            tensor.contiguous()
            for tensor in (
                step.token_ids,
                batch.positions,
                batch.slots,
                batch.row_starts,
                batch.block_tables,
                step.logit_rows,
                step.cos,
                step.sin,
            )
        ]
        rows, count = len(step.token_ids), len(step.logit_rows)
        arguments = _Step(
            *(tensor.data_ptr() for tensor in operands),
            rows,
            batch.block_tables.shape[0],
            batch.block_tables.shape[1],
            batch.page_size,
            count,
            torch.get_num_threads(),
        )
        logits = torch.empty(count, self._decoder.head.columns, dtype=self._stack.dtype)
        decoder, layers = ctypes.byref(self._decoder), self._layers
        size = self._library.forward_workspace(decoder, layers, rows, count)
        workspace = torch.empty(size, dtype=torch.uint8)
        self._library.forward(
            logits.data_ptr(),
            decoder,
            layers,
            ctypes.byref(arguments),
            _addresses(keys),
            _addresses(values),
            workspace.data_ptr(),
        )
        return logits


def check_ids(ids: Tensor, table: PackedLinear) -> None:
    """KernelError for an id without a row: the library does not look."""
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < table.columns:
        raise KernelError(f"token ids must be from 0 to {table.columns - 1}, got {int(ids.min())} to {int(ids.max())}")


def _addresses(tensors: Sequence[Tensor]) -> Any:
    return (_POINTER * len(tensors))(*(tensor.data_ptr() for tensor in tensors))
