"""The operators of kernel set "invariant", PyTorch backend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from detharness.kernels.contract import KernelName, KernelSet, PagedBatch, SampledRows, SamplingRows
from detharness.kernels.pytorch import pointwise
from detharness.kernels.pytorch.attention import AttentionKernel
from detharness.kernels.pytorch.linear import LinearKernel
from detharness.kernels.pytorch.tiles import CANDIDATE_TILES
from detharness.kernels.sampling import sample
from detharness.records.digests import sha256_file, sha256_value


class RowPureKernels(KernelSet):
    """Every output row depends on its own input row, position, weights and KV prefix alone; see the contract."""

    name: KernelName = "invariant"
    backend = "pytorch"

    def __init__(self) -> None:
        self._linear = LinearKernel()
        self._attention = AttentionKernel()
        self._plans: set[str] = set()

    def pack_linear(
        self, weights: Sequence[Tensor], biases: Sequence[Tensor | None], dtype: torch.dtype | None = None
    ) -> Any:
        """fp32 leaves; every new shape is probed on this host."""
        return self._linear.pack(weights, biases)

    def linear(self, x: Tensor, packed: Any) -> Tensor:
        """See the contract."""
        return self._linear(x, packed)

    def embedding(self, ids: Tensor, packed: Any, dtype: torch.dtype) -> Tensor:
        """See the contract."""
        rows: Tensor = packed.rows(ids)
        return rows.to(dtype)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See the contract."""
        self._plans.add(pointwise.norm_plan(x.shape[-1]).id)
        return pointwise.rms_norm(x, weight, eps)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """See the contract."""
        total = x + residual
        return self.rms_norm(total, weight, eps), total

    def rope(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """See the contract."""
        return pointwise.rotate(q, cos, sin), pointwise.rotate(k, cos, sin)

    def write_kv(self, k: Tensor, v: Tensor, k_pages: Tensor, v_pages: Tensor, slots: Tensor) -> None:
        """See the contract."""
        k_pages.view(-1, *k.shape[1:])[slots] = k
        v_pages.view(-1, *v.shape[1:])[slots] = v

    def attention(
        self, q: Tensor, k_pages: Tensor, v_pages: Tensor, batch: PagedBatch, scale: float, window: int | None
    ) -> Tensor:
        """See the contract."""
        return self._attention(q, k_pages, v_pages, batch, scale, window)

    def silu_and_mul(self, gate_up: Tensor) -> Tensor:
        """See the contract."""
        return pointwise.silu_and_mul(gate_up)

    def log_softmax(self, logits: Tensor) -> Tensor:
        """See the contract."""
        self._plans.add(pointwise.softmax_plan(logits.shape[-1]).id)
        return pointwise.log_softmax(logits)

    def sample(self, logits: Tensor, rows: SamplingRows, *, want_processed: bool) -> SampledRows:
        """See ``kernels.sampling``."""
        return sample(logits, rows, self.log_softmax if want_processed else None)

    def dispatch_borders(self, length: int) -> tuple[int, ...]:
        """The row tiles."""
        return CANDIDATE_TILES

    def identity(self) -> str:
        """The sources of this folder and of the arithmetic it rests on."""
        folder = Path(__file__).parent
        paths = [*folder.glob("*.py"), folder.parent / "elementary.py", folder.parent / "sampling.py"]
        return sha256_value({path.name: sha256_file(path) for path in sorted(paths)})

    def plan_ids(self) -> tuple[str, ...]:
        """Ids of the reduction plans used so far, sorted."""
        return tuple(sorted(self._plans | self._linear.plans | self._attention.plans))

    def tile_probes(self) -> list[dict[str, Any]]:
        """What the bit probes of this host found, product by product."""
        return [asdict(probe) for probe in (*self._linear.probes, *self._attention.probes)]
