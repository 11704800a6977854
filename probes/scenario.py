"""What is played and what is watched in it: plain data, made before anything runs.

A **scenario** is one play of a traffic script under one engine configuration. A **watch** names one request in it
whose reply is compared, the axis the comparison speaks for, and the reference it is compared with. Reference and
scenario differ in that axis only, so a movement is attributed to the axis and to nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from detharness.targets.protocol import Arrival, EngineConfig, PlayResult, SamplingParams

TWIN_TEMPERATURE = 0.8  # Warm enough that another noise draws other tokens within a few steps.


@dataclass(frozen=True)
class Probe:
    """A prompt under test: its token ids and how its reply is sampled (``seq_seed`` is always set).

    ``twin_of``: the greedy probe that this one repeats with noise, for axes that greedy replies cannot see.
    """

    id: str
    token_ids: tuple[int, ...]
    sampling: SamplingParams
    twin_of: str | None = None

    @property
    def greedy(self) -> bool:
        """Whether its tokens are arg-maxes."""
        return self.sampling.temperature == 0

    def twin(self) -> Probe:
        """The same prompt under the same seed, sampled. No prompt's id holds a ``~``, so the twin's is its own."""
        return Probe(
            f"{self.id}~sampled", self.token_ids, replace(self.sampling, temperature=TWIN_TEMPERATURE), self.id
        )


Sample = tuple[str, int]
"""One sample of a request in a play: (request id, sample index)."""


@dataclass(frozen=True)
class Reference:
    """The reply compared with: a sample of request ``request_id`` of a scenario, from its token ``offset`` on."""

    scenario: str
    request_id: str
    offset: int = 0
    sample: int = 0


@dataclass(frozen=True)
class Watch:
    """One compared request. ``axis`` None: several things differ at once, so no axis is blamed.

    ``offset``: the request's first token stands where token ``offset`` of the probe's solo reply stands (above 0
    when the prompt already holds the head of the reply).
    premise: a reply that must equal the probe's solo reply bit for bit, or the comparison cannot be told from
    another axis and counts for none.
    sample: which of the request's samples is compared. repeats_solo: whether the solo reply is what it must equal too
    (not where it is sampled otherwise).
    """

    probe_id: str
    request_id: str
    axis: str | None
    level: str
    reference: Reference
    offset: int = 0
    premise: Reference | None = None
    sample: int = 0
    repeats_solo: bool = True


@dataclass(frozen=True)
class Scenario:
    """One play. ``key`` is unique within an arm and names the play in records.

    ``factors``: the covering row it stands for, if it stands for one.
    """

    key: str
    arrivals: tuple[Arrival, ...]
    config: EngineConfig
    watches: tuple[Watch, ...] = ()
    factors: Mapping[str, Any] | None = None

    @property
    def cost(self) -> int:
        """A rough size for the time left: one unit is about eight decode steps or 100 prompt tokens."""
        prompt = sum(len(arrival.token_ids) for arrival in self.arrivals)
        first, last = min(a.step for a in self.arrivals), max(a.step for a in self.arrivals)
        steps = last - first + max(arrival.sampling.max_tokens for arrival in self.arrivals)
        return 1 + steps // 8 + prompt // 100


@dataclass(frozen=True)
class Played:
    """A scenario and what came out of it."""

    scenario: Scenario
    result: PlayResult


def solo_key(probe_id: str) -> str:
    """The scenario in which a probe runs alone."""
    return f"solo/{probe_id}"


def solo_reference(probe_id: str, offset: int = 0) -> Reference:
    """The probe's own reply when nobody else is there."""
    return Reference(solo_key(probe_id), probe_id, offset)


def merge(scenarios: Iterable[Scenario]) -> list[Scenario]:
    """Join scenarios of equal key (several axes may watch one play), in order of first appearance.

    ValueError when two of one key are not the same play: a key must mean one thing.
    """
    merged: dict[str, Scenario] = {}
    for scenario in scenarios:
        held = merged.get(scenario.key)
        if held is None:
            merged[scenario.key] = scenario
            continue
        if (held.arrivals, held.config) != (scenario.arrivals, scenario.config):
            raise ValueError(f"two different plays are called {scenario.key!r}")
        new = tuple(watch for watch in scenario.watches if watch not in held.watches)
        merged[scenario.key] = replace(held, watches=held.watches + new)
    return list(merged.values())
