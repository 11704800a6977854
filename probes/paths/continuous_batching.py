"""continuous_batching: the probe under the library's continuous batching.

alone: nobody else in the manager, against the plain call of ``generate``: what the path itself changes. batch=4 and
arrivals: beside others, against alone in the manager: what company changes. In arrivals requests join one by one while
those before them run, so that decoded rows share forward passes with prompts.
"""

from __future__ import annotations

from detharness.probes.axes.axis import Counters
from detharness.probes.paths.axis import PathAxis, watched_passes
from detharness.probes.paths.bench import PathBench, Play
from detharness.probes.scenario import Probe, Reference, Watch, solo_reference
from detharness.targets.paths import PathRequest, PathRun

ALONE, BATCH, ARRIVALS = "alone", "batch=4", "arrivals"
SIZE = 4
_GAP = 3  # Forward passes between two arrivals.


class ContinuousBatching(PathAxis):
    """Requests that come and go between forward passes."""

    name = "continuous_batching"

    def plays(self, bench: PathBench) -> list[Play]:
        """Every probe alone, which the others are compared with; then four at a time, at once and one by one."""
        plays = [self._alone(bench, probe) for probe in bench.probes]
        for level, gap in ((BATCH, 0), (ARRIVALS, _GAP)):
            plays += [self._together(bench, level, gap, number, probes) for number, probes in bench.groups(SIZE)]
        return plays

    def exercised(self, watch: Watch, trial: PathRun) -> Counters:
        """Forward passes by the number of requests in them; company counts where it is what is compared."""
        sizes = [size for size, _ in watched_passes(watch, trial) if watch.level == ALONE or size > 1]
        return {"requests_per_pass": sorted(set(sizes)), "passes": len(sizes)} if sizes else {}

    def _alone(self, bench: PathBench, probe: Probe) -> Play:
        watch = Watch(probe.id, probe.id, self.name, ALONE, solo_reference(probe.id))
        return Play(_alone_key(probe.id), "continuous_batching", (bench.request(probe),), (watch,))

    def _together(self, bench: PathBench, level: str, gap: int, number: int, probes: tuple[Probe, ...]) -> Play:
        key = f"{level}/round={bench.round}/{number}"
        mine = [bench.request(probe, arrives=gap * index) for index, probe in enumerate(probes)]
        fillers, most = bench.fillers(key), max(request.max_tokens for request in mine)
        others: list[PathRequest] = [
            bench.filler(fillers, index, most, arrives=gap * index) for index in range(len(probes), SIZE)
        ]
        watches = [
            Watch(probe.id, probe.id, self.name, level, Reference(_alone_key(probe.id), probe.id)) for probe in probes
        ]
        return Play(key, "continuous_batching", (*mine, *others), tuple(watches))


def _alone_key(probe_id: str) -> str:
    return f"managed/{probe_id}"
