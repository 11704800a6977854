"""Who runs in the next step, and with how many rows: one token budget, prefill chunks and decodes mixed.

The schedule is a pure function of the requests, their order and the configuration. Oldest first, so the oldest
request always advances; when the pool runs dry the newest loses its blocks. Nothing here touches a tensor.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field

from detharness.engine.blocks import CHAIN_ROOT, BlockPool, page_key
from detharness.engine.params import EngineConfig, MemoryPolicy, PrefixCaching
from detharness.engine.sequence import Sequence
from detharness.errors import CapacityError


@dataclass(frozen=True)
class Slice:
    """``count`` rows of ``sequence`` from position ``start``; the last one is sampled if it is the newest token."""

    sequence: Sequence
    start: int
    count: int

    @property
    def samples(self) -> bool:
        """Whether this slice reaches the newest token, whose logits give the next one."""
        return self.start + self.count == len(self.sequence.tokens)


@dataclass
class Schedule:
    """One step's decisions."""

    slices: list[Slice] = field(default_factory=list)
    preempted: list[tuple[str, int]] = field(default_factory=list)
    cache_hits: list[tuple[str, int, int]] = field(default_factory=list)


class Scheduler:
    """Keeps the waiting and running sequences, each in order of arrival."""

    def __init__(self, config: EngineConfig, pool: BlockPool, max_positions: int) -> None:
        self._config = config
        self._pool = pool
        self._max_positions = max_positions
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []

    def budget(self, sequence: Sequence) -> int:
        """Tokens whose KV the sequence may ever hold: the last token drawn is never written."""
        return min(sequence.prompt_length + sequence.request.sampling.max_tokens - 1, self._max_positions)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence; refuse one that the whole pool could not hold."""
        needed = -(-self.budget(sequence) // self._config.page_size)
        if needed > self._pool.num_blocks:
            raise CapacityError(
                f"request {sequence.request.request_id!r} may need {needed} KV pages of {self._config.page_size} "
                f"tokens, and the pool has {self._pool.num_blocks}: raise num_blocks or lower max_tokens"
            )
        bisect.insort(self.waiting, sequence, key=_arrival)

    def remove(self, sequence: Sequence, step: int) -> None:
        """Forget a finished or aborted sequence and give up its pages."""
        (self.running if sequence in self.running else self.waiting).remove(sequence)
        self._release(sequence, step)

    def schedule(self, step: int) -> Schedule:
        """Decide one step: running sequences first, then admissions while budget and blocks last."""
        plan = Schedule()
        budget = self._config.max_step_tokens
        for sequence in list(self.running):
            if budget == 0:
                break
            if sequence not in self.running:  # Preempted by an older one in this very step.
                continue
            count = min(len(sequence.tokens) - sequence.computed, budget)
            if not self._grow(sequence, count, step, plan):
                break
            plan.slices.append(Slice(sequence, sequence.computed, count))
            budget -= count
        while budget > 0 and self.waiting and not plan.preempted:
            if len(self.running) == self._config.max_running:
                break
            sequence = self.waiting[0]
            if not self._admit(sequence, step, plan):
                break
            count = min(len(sequence.tokens) - sequence.computed, budget)
            if not self._take(sequence, count, step):
                self._release(sequence, step)
                break
            self.waiting.pop(0)
            bisect.insort(self.running, sequence, key=_arrival)
            if sequence.computed:
                plan.cache_hits.append((*sequence.name, sequence.computed))
            if sequence.cached_tokens is None:
                sequence.cached_tokens = sequence.computed
            plan.slices.append(Slice(sequence, sequence.computed, count))
            budget -= count
        return plan

    def computed(self, piece: Slice) -> None:
        """Note that the slice's KV is written, and make its full pages findable."""
        sequence = piece.sequence
        sequence.computed = piece.start + piece.count
        sequence.high_water = max(sequence.high_water, sequence.computed)
        if self._config.prefix_caching is PrefixCaching.OFF:
            return
        size = self._config.page_size
        while (len(sequence.page_keys) + 1) * size <= sequence.computed:
            index = len(sequence.page_keys)
            parent = sequence.page_keys[-1] if sequence.page_keys else CHAIN_ROOT
            key = page_key(parent, sequence.tokens[index * size : (index + 1) * size])
            sequence.page_keys.append(key)
            self._pool.register(sequence.block_table[index], key)

    def _admit(self, sequence: Sequence, step: int, plan: Schedule) -> bool:
        """Attach cached pages, and under RESERVE check that the whole budget fits beside earlier promises."""
        cached = self._config.prefix_caching is PrefixCaching.ON
        # Prompt logprobs are computed, never taken from a cache hit.
        if cached and sequence.request.sampling.prompt_logprobs is None:
            sequence.block_table = self._pool.match(sequence.tokens, step)
            sequence.computed = len(sequence.block_table) * self._config.page_size
        if self._config.memory_policy is MemoryPolicy.RESERVE:
            size = self._config.page_size
            promised = sum(other.pages_for(self.budget(other), size) for other in self.running)
            if sequence.pages_for(self.budget(sequence), size) > self._pool.available - promised:
                self._release(sequence, step)
                return False
        return True

    def _grow(self, sequence: Sequence, count: int, step: int, plan: Schedule) -> bool:
        """Blocks for ``count`` more rows, preempting from the newest end; False if it had to give way itself."""
        while not self._take(sequence, count, step):
            victim = self.running[-1]
            assert self._config.memory_policy is MemoryPolicy.RECOMPUTE, "a reserved budget can never run out"
            self.running.pop()
            self._release(victim, step)
            victim.preemptions += 1
            bisect.insort(self.waiting, victim, key=_arrival)
            plan.preempted.append(victim.name)
            if victim is sequence:
                return False
        return True

    def _take(self, sequence: Sequence, count: int, step: int) -> bool:
        missing = sequence.pages_for(sequence.computed + count, self._config.page_size)
        if missing > self._pool.available:
            return False
        for _ in range(missing):
            page = self._pool.allocate(step)
            assert page is not None
            sequence.block_table.append(page)
        return True

    def _release(self, sequence: Sequence, step: int) -> None:
        self._pool.release(sequence.block_table, step)
        sequence.block_table = []
        sequence.page_keys = []
        sequence.computed = 0


def _arrival(sequence: Sequence) -> tuple[int, int]:
    return sequence.order, sequence.sample_index
