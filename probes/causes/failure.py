"""A failing comparison as data that can be made smaller: two plays, and whose replies differ in them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from detharness.probes.scenario import Sample, Scenario
from detharness.targets.protocol import Arrival, EngineConfig


@dataclass(frozen=True)
class Play:
    """A traffic script and the configuration it runs under."""

    arrivals: tuple[Arrival, ...]
    config: EngineConfig

    @classmethod
    def of(cls, scenario: Scenario) -> Play:
        """What is played in a scenario."""
        return cls(scenario.arrivals, scenario.config)

    def get(self, request_id: str) -> Arrival | None:
        """The request of that name, if it is in the play."""
        return next((arrival for arrival in self.arrivals if arrival.request_id == request_id), None)


@dataclass(frozen=True)
class Side:
    """One reply: a sample of a request of a play."""

    play: Play
    sample: Sample

    @property
    def request(self) -> Arrival:
        """The request that is compared."""
        found = self.play.get(self.sample[0])
        assert found is not None
        return found


@dataclass(frozen=True)
class Failure:
    """The trial's reply differs from the reference's.

    ``alike``: two replies that must be equal, or the difference says nothing (see ``Watch.premise``).
    """

    trial: Side
    reference: Side
    alike: tuple[Side, Side] | None = None

    @property
    def watched(self) -> tuple[str, ...]:
        """Request ids that are compared, each once; the trial's is the first."""
        return tuple(dict.fromkeys(side.sample[0] for side in self._sides))

    @property
    def neighbours(self) -> tuple[str, ...]:
        """Request ids that are not, in order of arrival, the trial's first."""
        ids = (arrival.request_id for side in self._sides for arrival in side.play.arrivals)
        return tuple(name for name in dict.fromkeys(ids) if name not in self.watched)

    @property
    def _sides(self) -> tuple[Side, ...]:
        return (self.trial, self.reference, *(self.alike or ()))

    @property
    def plays(self) -> tuple[Play, ...]:
        """What has to be played to compare."""
        return tuple(side.play for side in self._sides)

    def each(self, change: Callable[[Play], Play]) -> Failure:
        """The same comparison with every play changed in the same way."""

        def side(of: Side) -> Side:
            return replace(of, play=change(of.play))

        alike = None if self.alike is None else (side(self.alike[0]), side(self.alike[1]))
        return Failure(side(self.trial), side(self.reference), alike)

    def each_request(self, names: tuple[str, ...], change: Callable[[Arrival], Arrival]) -> Failure:
        """The same comparison with these requests changed in the same way wherever they are."""
        return self.each(
            lambda play: replace(play, arrivals=tuple(change(a) if a.request_id in names else a for a in play.arrivals))
        )
