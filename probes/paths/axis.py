"""What an axis of paths must offer."""

from __future__ import annotations

from abc import ABC, abstractmethod

from detharness.probes.axes.axis import Counters
from detharness.probes.paths.bench import PathBench, Play
from detharness.probes.scenario import Watch
from detharness.targets.paths import PathRun


class PathAxis(ABC):
    """One thing that must not change a reply."""

    name: str

    @abstractmethod
    def plays(self, bench: PathBench) -> list[Play]:
        """Plays with their watches, references included and before their users."""

    @abstractmethod
    def exercised(self, watch: Watch, trial: PathRun) -> Counters:
        """Counters from the forward passes that prove the axis moved for this watch; {} if it did not."""


def watched_passes(watch: Watch, trial: PathRun) -> list[tuple[int, int]]:
    """(requests, padding of the watched one) in each forward pass that held it."""
    return [
        (len(forward.requests), forward.padding[forward.requests.index(watch.request_id)])
        for forward in trial.forwards
        if watch.request_id in forward.requests
    ]
