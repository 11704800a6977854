"""What a mutant is: the sound kernels with one operator that reads what row purity forbids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from detharness.kernels.contract import KernelName, KernelSet, PagedBatch, SampledRows, SamplingRows
from detharness.records.digests import sha256_value


@dataclass(frozen=True)
class Fault:
    """A mutant's label.

    name: how it is called on the command line and in reports. models: public reports of such a bug, as
    ``project#number``; empty where none is known. operator: the one at fault. axes: those of the probe that it must
    be blamed on, the chief one first.
    """

    name: str
    models: tuple[str, ...]
    operator: str
    axes: tuple[str, ...]


class FaultyKernels(KernelSet):
    """Hands every operator on to ``sound``; a mutant overrides one of them. Its docstring says what goes wrong.

    It is never fused, so its operators are really called; its name in reports is "mutant", its backend which one.
    """

    fault: ClassVar[Fault]
    name: KernelName = "mutant"

    def __init__(self, sound: KernelSet) -> None:
        self.sound = sound
        self.backend = self.fault.name

    def pack_linear(
        self, weights: Sequence[Tensor], biases: Sequence[Tensor | None], dtype: torch.dtype | None = None
    ) -> Any:
        """See the contract."""
        return self.sound.pack_linear(weights, biases, dtype)

    def linear(self, x: Tensor, packed: Any) -> Tensor:
        """See the contract."""
        return self.sound.linear(x, packed)

    def embedding(self, ids: Tensor, packed: Any, dtype: torch.dtype) -> Tensor:
        """See the contract."""
        return self.sound.embedding(ids, packed, dtype)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See the contract."""
        return self.sound.rms_norm(x, weight, eps)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """See the contract."""
        return self.sound.add_rms_norm(x, residual, weight, eps)

    def rope(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """See the contract."""
        return self.sound.rope(q, k, cos, sin)

    def write_kv(self, k: Tensor, v: Tensor, k_pages: Tensor, v_pages: Tensor, slots: Tensor) -> None:
        """See the contract."""
        self.sound.write_kv(k, v, k_pages, v_pages, slots)

    def attention(
        self, q: Tensor, k_pages: Tensor, v_pages: Tensor, batch: PagedBatch, scale: float, window: int | None
    ) -> Tensor:
        """See the contract."""
        return self.sound.attention(q, k_pages, v_pages, batch, scale, window)

    def silu_and_mul(self, gate_up: Tensor) -> Tensor:
        """See the contract."""
        return self.sound.silu_and_mul(gate_up)

    def log_softmax(self, logits: Tensor) -> Tensor:
        """See the contract."""
        return self.sound.log_softmax(logits)

    def sample(self, logits: Tensor, rows: SamplingRows, *, want_processed: bool) -> SampledRows:
        """See the contract."""
        return self.sound.sample(logits, rows, want_processed=want_processed)

    def dispatch_borders(self, length: int) -> tuple[int, ...]:
        """Those of the sound kernels: a faulty kernel does not tell where it changes its ways."""
        return self.sound.dispatch_borders(length)

    def identity(self) -> str:
        """Digest of the sound kernels' identity and the mutant's name."""
        return sha256_value([self.sound.identity(), self.fault.name])

    def plan_ids(self) -> tuple[str, ...]:
        """Plans of the sound kernels; the faulty operator has none worth the name."""
        return self.sound.plan_ids()
