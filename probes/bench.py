"""The workbench of one arm: the probes, the fillers' seed, the base configuration, and the common plays.

Pools and step budgets are sized to the traffic here, so that nothing is chunked or preempted unless a scenario
asks for it: a chunk border in a batch-size scenario would be blamed on the batch size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from detharness.probes.scenario import Probe, Reference, Scenario, Watch, solo_key, solo_reference
from detharness.probes.traffic.fillers import LONGEST, Fillers
from detharness.targets.protocol import Arrival, EngineConfig

TOGETHER = "together"
BORDER_TOKENS = 8  # What a border in the prompt moves shows in the first rows after it.
KV_GRID = 64  # Attention that keeps its order cuts the KV at multiples of this, from token 0.


def pages(tokens: int, page_size: int) -> int:
    """Pages that hold ``tokens`` tokens."""
    return -(-tokens // page_size)


def budget_tokens(arrival: Arrival) -> int:
    """Tokens whose KV a request may ever hold."""
    return len(arrival.token_ids) + arrival.sampling.max_tokens


def room_for(arrivals: Sequence[Arrival], config: EngineConfig) -> dict[str, int]:
    """Settings of the pool and the step under which this traffic is neither chunked, preempted nor kept waiting."""
    return {
        "max_step_tokens": max(config.max_step_tokens, sum(a.sampling.n * budget_tokens(a) for a in arrivals)),
        "num_blocks": sum(a.sampling.n * pages(budget_tokens(a), config.page_size) for a in arrivals),
        "max_running": max(config.max_running, sum(a.sampling.n for a in arrivals)),
    }


@dataclass(frozen=True)
class Stretched:
    """A probe that goes on from within its own reply: its play alone, its request, and the reply tokens it knows."""

    alone: Scenario
    arrival: Arrival
    known: int

    @property
    def reference(self) -> Reference:
        """Its reply when it is alone."""
        return Reference(self.alone.key, self.arrival.request_id)


@dataclass(frozen=True)
class Bench:
    """What scenarios are built from.

    config: base configuration. together_tokens: reply length of the common play (None: full); twin_tokens: that of
    the sampled twins. small_pool: pages of the pool that traffic with preemption runs in (None: sized to hold about
    half of the traffic). chunk_budget: one more step budget to cut prompts with. replies: solo replies by probe id,
    known once they were played. dispatch_borders: row counts at which the arm's kernels change their way of working,
    where they tell. host_threads: cores this process may use; baseline_threads: threads the solo replies
    were computed with.
    """

    probes: tuple[Probe, ...]
    vocab_size: int
    config: EngineConfig
    seed: int
    capture_logits: bool
    small_pool: int | None = None
    chunk_budget: int | None = None
    filler_count: int = 4
    together_tokens: int | None = None
    twin_tokens: int | None = None
    round: int = 0
    dispatch_borders: tuple[int, ...] = ()
    host_threads: int = 1
    baseline_threads: int = 1
    replies: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def fillers(self, label: str) -> Fillers:
        """Fillers for one use; another label or another round draws others."""
        return Fillers(self.seed, f"{self.round}/{label}", self.vocab_size, self.probes)

    def longest(self, count: int | None) -> tuple[Probe, ...]:
        """``count`` probes, the longest prompt first (long ones move most), then in file order; None: all of them."""
        first = max(self.probes, key=lambda probe: len(probe.token_ids))
        return (first, *(probe for probe in self.probes if probe is not first))[:count]

    def shortest(self, count: int | None) -> tuple[Probe, ...]:
        """``count`` probes by length of prompt: several copies of a long one are mostly prefill. None: all of them."""
        return tuple(sorted(self.probes, key=lambda probe: len(probe.token_ids)))[:count]

    @property
    def twins(self) -> tuple[Probe, ...]:
        """The sampled twins of the greedy probes."""
        return tuple(self._twin(probe) for probe in self.probes if probe.greedy)

    def _twin(self, probe: Probe) -> Probe:
        twin = probe.twin()
        limit = min(twin.sampling.max_tokens, self.twin_tokens or twin.sampling.max_tokens)
        return replace(twin, sampling=replace(twin.sampling, max_tokens=limit))

    def sampling(self, count: int | None) -> tuple[Probe, ...]:
        """``count`` probes that sample, by length of prompt: those asked to, and the twins of the others."""
        ours = tuple(self._twin(probe) if probe.greedy else probe for probe in self.probes)
        return tuple(sorted(ours, key=lambda probe: len(probe.token_ids)))[:count]

    def horizon(self, tokens: int | None) -> int:
        """The longest reply asked for, cut to ``tokens``."""
        longest = max(probe.sampling.max_tokens for probe in self.probes)
        return longest if tokens is None else min(tokens, longest)

    def arrival(
        self,
        probe: Probe,
        tokens: int | None = None,
        *,
        step: int = 0,
        request_id: str | None = None,
        prompt: tuple[int, ...] | None = None,
    ) -> Arrival:
        """The probe as a request, its reply cut to ``tokens``."""
        limit = probe.sampling.max_tokens if tokens is None else min(tokens, probe.sampling.max_tokens)
        return Arrival(
            step=step,
            request_id=probe.id if request_id is None else request_id,
            token_ids=probe.token_ids if prompt is None else prompt,
            sampling=replace(probe.sampling, max_tokens=limit),
            capture_logits=self.capture_logits,
        )

    def scenario(
        self, key: str, arrivals: Sequence[Arrival], watches: Sequence[Watch] = (), **changes: Any
    ) -> Scenario:
        """A scenario whose configuration has room for all of its traffic, except where ``changes`` says otherwise."""
        config = replace(self.config, **changes)
        return Scenario(
            key, tuple(arrivals), replace(config, **{**room_for(arrivals, config), **changes}), tuple(watches)
        )

    def solo(self, probe: Probe) -> Scenario:
        """The probe alone."""
        return self.scenario(solo_key(probe.id), [self.arrival(probe)])

    def repeat(self, probe: Probe, copies: int, tokens: int | None) -> Scenario:
        """The probe and copies of itself, all at once: the first is called after the probe, the others ``~1``, ..."""
        arrivals = [
            self.arrival(probe, tokens, request_id=probe.id if index == 0 else f"{probe.id}~{index}")
            for index in range(copies)
        ]
        return self.scenario(f"repeat/{probe.id}/{copies}/{self.horizon(tokens)}", arrivals)

    def stretched(self, probe: Probe, length: int) -> Stretched | None:
        """The probe with so much of its reply in its prompt that this is ``length`` long; None if it cannot be."""
        known = length - len(probe.token_ids)
        reply = self.replies.get(probe.id, ())
        if not 0 <= known <= len(reply) - 2:
            return None
        left = min(BORDER_TOKENS, len(reply) - known)
        prompt = probe.token_ids + reply[:known]
        arrival = self.arrival(probe, left, request_id=f"{probe.id}~{length}", prompt=prompt)
        return Stretched(self.scenario(f"stretched/{probe.id}/{length}", [arrival]), arrival, known)

    def around_borders(self, probe: Probe) -> list[Stretched]:
        """The probe stretched to the next end of a page and of the KV grid, one token short of each, and one over."""
        length = len(probe.token_ids)
        ends = {-(-(length + 1) // size) * size for size in (self.config.page_size, KV_GRID)}
        lengths = sorted({end + offset for end in ends for offset in (-1, 0, 1)})
        return [held for length in lengths if (held := self.stretched(probe, length))]

    def neighbours(self, tokens: int | None) -> list[Arrival]:
        """The fillers of the common play."""
        fillers = self.fillers(TOGETHER)
        return fillers.arrivals(fillers.lengths(self.filler_count), self.horizon(tokens))

    def together(self) -> Scenario:
        """All probes and fillers at once: the common reference of axes that need neighbours."""
        watches = [Watch(p.id, p.id, None, TOGETHER, solo_reference(p.id)) for p in self.probes]
        tokens = self.together_tokens
        return self.scenario(self.together_key, self.all_probes(tokens) + self.neighbours(tokens), watches)

    def amid(self, probes: Sequence[Probe], load: Sequence[Arrival], tokens: int | None) -> list[Arrival]:
        """Probes in the midst of other requests: half of those before them, half behind."""
        half = len(load) // 2
        return [*load[:half], *(self.arrival(probe, tokens) for probe in probes), *load[half:]]

    @property
    def together_key(self) -> str:
        """Key of the common play in this round."""
        return f"{TOGETHER}/round={self.round}"

    def all_probes(self, tokens: int | None) -> list[Arrival]:
        """Every probe, arriving at step 0 in file order."""
        return [self.arrival(probe, tokens) for probe in self.probes]

    def longer_than_all(self) -> int:
        """A filler length that sets the width of right padding for everyone."""
        return max(LONGEST, *(len(probe.token_ids) for probe in self.probes)) + 37
