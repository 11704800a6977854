"""The operators of kernel set "torch", one library call each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from detharness.kernels.contract import KernelName, KernelSet, PagedBatch, SampledRows, SamplingRows
from detharness.kernels.library.attention import padded_attention
from detharness.kernels.sampling import sample
from detharness.records.digests import sha256_file, sha256_value


@dataclass(frozen=True)
class _Weight:
    weight: Tensor
    bias: Tensor | None


class LibraryKernels(KernelSet):
    """``F.linear``, ``F.rms_norm``, ``F.silu``, ``torch.log_softmax`` and one padded SDPA call per step."""

    name: KernelName = "torch"
    backend = "library"

    def pack_linear(
        self, weights: Sequence[Tensor], biases: Sequence[Tensor | None], dtype: torch.dtype | None = None
    ) -> Any:
        """Join along N, in the rows' dtype; see the contract."""
        dtype = dtype or weights[0].dtype
        weights = [weight.to(dtype) for weight in weights]
        bias = None
        if any(part is not None for part in biases):
            # A part without a bias has zeros beside others that have one.
            parts = [w.new_zeros(len(w)) if b is None else b for w, b in zip(weights, biases, strict=True)]
            bias = torch.cat([part.to(dtype) for part in parts])
        return _Weight(weights[0] if len(weights) == 1 else torch.cat(weights), bias)

    def linear(self, x: Tensor, packed: Any) -> Tensor:
        """See the contract."""
        return functional.linear(x, packed.weight, packed.bias)

    def embedding(self, ids: Tensor, packed: Any, dtype: torch.dtype) -> Tensor:
        """See the contract."""
        return functional.embedding(ids, packed.weight)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See the contract."""
        return functional.rms_norm(x, (x.shape[-1],), weight, eps)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """See the contract."""
        total = x + residual
        return self.rms_norm(total, weight, eps), total

    def rope(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """See the contract."""
        return _rotate(q, cos, sin), _rotate(k, cos, sin)

    def write_kv(self, k: Tensor, v: Tensor, k_pages: Tensor, v_pages: Tensor, slots: Tensor) -> None:
        """See the contract."""
        k_pages.view(-1, *k.shape[1:])[slots] = k
        v_pages.view(-1, *v.shape[1:])[slots] = v

    def attention(
        self, q: Tensor, k_pages: Tensor, v_pages: Tensor, batch: PagedBatch, scale: float, window: int | None
    ) -> Tensor:
        """See the contract."""
        return padded_attention(q, k_pages, v_pages, batch, scale, window)

    def silu_and_mul(self, gate_up: Tensor) -> Tensor:
        """See the contract."""
        gate, up = gate_up.chunk(2, dim=-1)
        return functional.silu(gate) * up

    def log_softmax(self, logits: Tensor) -> Tensor:
        """See the contract."""
        return torch.log_softmax(logits, dim=-1)

    def sample(self, logits: Tensor, rows: SamplingRows, *, want_processed: bool) -> SampledRows:
        """See ``kernels.sampling``."""
        return sample(logits, rows, self.log_softmax if want_processed else None)

    def identity(self) -> str:
        """The sources of this folder; the arithmetic itself is the library's."""
        paths = sorted(Path(__file__).parent.glob("*.py"))
        return sha256_value({path.name: sha256_file(path) for path in paths})

    def plan_ids(self) -> tuple[str, ...]:
        """Empty: the library decides, call by call."""
        return ()


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.float().chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)
