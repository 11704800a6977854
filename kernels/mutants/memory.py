"""Faults of memory: what a kernel kept from an earlier call decides about this one."""

from __future__ import annotations

from typing import Any
from weakref import ref

import torch
from torch import Tensor

from detharness.kernels.contract import KernelSet, PagedBatch
from detharness.kernels.mutants.faulty import Fault, FaultyKernels
from detharness.kernels.mutants.orders import blocks, split_product
from detharness.kernels.mutants.tiling import CutAttention, context, first_position


class _HitSpotter(CutAttention):
    """Knows a prefix hit by what a kernel can see: rows that do not continue any request of the step before."""

    def __init__(self, sound: KernelSet) -> None:
        super().__init__(sound)
        self._step: PagedBatch | None = None
        self._ends: dict[int, int] = {}
        self._before: dict[int, int] = {}

    def is_hit(self, batch: PagedBatch, request: int) -> bool:
        """Whether the request's cache was filled by somebody else."""
        if batch is not self._step:
            self._step, self._before = batch, self._ends
            self._ends = dict(zip(batch.block_tables[:, 0].tolist(), batch.context_lens.tolist(), strict=True))
        start = first_position(batch, request)
        return start > 0 and self._before.get(int(batch.block_tables[request, 0])) != start


class PrefixHitPath(_HitSpotter):
    """Rows behind a prefix that was found take another path than rows behind one that was computed."""

    fault = Fault("prefix-hit-path", ("vllm#40896", "vllm#5543"), "attention", ("prefix_cache",))

    def pieces(self, batch: PagedBatch, request: int) -> list[Tensor] | None:
        """Blocks of 16 on a hit."""
        return blocks(context(batch, request), 16) if self.is_hit(batch, request) else None


class OneBlockPrefix(_HitSpotter):
    """A prefix that was found takes the path of no prefix where it is one page long, in another order."""

    fault = Fault("one-block-prefix", ("sglang#22819",), "attention", ("prefix_cache",))

    def pieces(self, batch: PagedBatch, request: int) -> list[Tensor] | None:
        """Blocks of 16 on a hit of one page."""
        whole = self.is_hit(batch, request) and first_position(batch, request) == batch.page_size
        return blocks(context(batch, request), 16) if whole else None


class LogprobsLeftUnset(_HitSpotter):
    """On a hit the logprobs are taken from a buffer that nobody filled for this request."""

    fault = Fault("logprobs-left-unset", ("vllm#42019",), "log_softmax", ("prefix_cache",))

    def __init__(self, sound: KernelSet) -> None:
        super().__init__(sound)
        self._hit = False
        self._buffer = torch.zeros(0, 0)

    def pieces(self, batch: PagedBatch, request: int) -> list[Tensor] | None:
        """Attention itself is sound; it only tells of hits."""
        self._hit |= self.is_hit(batch, request)
        return None

    def log_softmax(self, logits: Tensor) -> Tensor:
        """See the contract."""
        hit, self._hit = self._hit, False
        if hit and self._buffer.shape == logits.shape:
            return self._buffer
        self._buffer = self.sound.log_softmax(logits)
        return self._buffer


class LateWrite(FaultyKernels):
    """The newest row of each request is written once more while the next step runs, whoever owns its slot by then."""

    fault = Fault("late-write", ("sglang#35049", "vllm#45357"), "write_kv", ("cancel",))

    def __init__(self, sound: KernelSet) -> None:
        super().__init__(sound)
        self._in_flight: dict[int, tuple[ref[Tensor], Tensor, Tensor, Tensor]] = {}

    def write_kv(self, k: Tensor, v: Tensor, k_pages: Tensor, v_pages: Tensor, slots: Tensor) -> None:
        """See the contract."""
        self.sound.write_kv(k, v, k_pages, v_pages, slots)
        late = self._in_flight.get(id(k_pages))
        if late is not None and late[0]() is k_pages:  # Another engine's pages may come to stand at the same address.
            self.sound.write_kv(late[1], late[2], k_pages, v_pages, late[3])
        self._in_flight[id(k_pages)] = ref(k_pages), k.clone(), v.clone(), slots.clone()


class TunedWhileServing(FaultyKernels):
    """The first calls try one kernel; later ones take another that was faster."""

    fault = Fault("tuned-while-serving", ("triton#9368", "vllm#42425"), "linear", ("run_to_run",))
    trials = 300  # Calls until the choice falls.

    def __init__(self, sound: KernelSet) -> None:
        super().__init__(sound)
        self._calls = 0

    def linear(self, x: Tensor, packed: Any) -> Tensor:
        """See the contract."""
        self._calls += 1
        return split_product(self.sound, x, packed, 2 if self._calls <= self.trials else 1)
