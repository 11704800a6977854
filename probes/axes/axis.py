"""What an axis must offer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from detharness.probes.bench import Bench
from detharness.probes.scenario import Played, Scenario, Watch
from detharness.targets.protocol import RowGroup, StepRecord

Counters = dict[str, int | list[int]]
"""Proof of exercise: numbers add up over trials, lists join as sets. Empty: the axis was not exercised."""


@dataclass(frozen=True)
class AxisDepth:
    """How far an axis is taken: how many probes (None all), reply tokens (None all), and which of its levels.

    Axes on the common play take every probe, since all of them are in it anyway.
    """

    probes: int | None = None
    tokens: int | None = None
    levels: tuple[str, ...] | None = None

    def has(self, level: str) -> bool:
        """Whether ``level`` is played."""
        return self.levels is None or level in self.levels


class Axis(ABC):
    """One thing that must not change a reply."""

    name: str
    levels: tuple[str, ...]
    watches_twins: bool = False
    """Whether it also watches the sampled twins of greedy probes."""

    @abstractmethod
    def scenarios(self, bench: Bench, depth: AxisDepth) -> list[Scenario]:
        """Plays with their watches, references included and before their users."""

    @abstractmethod
    def exercised(self, watch: Watch, trial: Played, reference: Played) -> Counters:
        """Counters from the step records that prove the axis moved for this watch; {} if it did not."""


@dataclass(frozen=True)
class Seat:
    """One request's rows in one step: the group, its place among the step's groups, and the step."""

    step: StepRecord
    index: int
    group: RowGroup

    @property
    def others(self) -> list[RowGroup]:
        """The groups beside it."""
        return [group for index, group in enumerate(self.step.groups) if index != self.index]

    @property
    def tokens_beside(self) -> list[tuple[int, ...]]:
        """What they hold, in their order."""
        return [group.token_ids for group in self.others]


def seats(trace: Sequence[StepRecord], request_id: str, sample: int = 0) -> list[Seat]:
    """Where one sample of a request sat, step by step."""
    return [
        Seat(step, index, group)
        for step in trace
        for index, group in enumerate(step.groups)
        if (group.request_id, group.sample_index) == (request_id, sample)
    ]


def paired_seats(watch: Watch, trial: Played, reference: Played) -> list[tuple[Seat, Seat]]:
    """The request's seats in the trial and in the reference, one pair for each step both took."""
    return list(
        zip(
            seats(trial.result.trace, watch.request_id, watch.sample),
            seats(reference.result.trace, watch.reference.request_id, watch.reference.sample),
            strict=False,
        )
    )


def steps_in_equal_company(watch: Watch, trial: Played, reference: Played) -> int:
    """Steps in which the request had neighbours, and those held what its reference's held."""
    return sum(
        bool(mine.others) and mine.tokens_beside == theirs.tokens_beside
        for mine, theirs in paired_seats(watch, trial, reference)
    )
