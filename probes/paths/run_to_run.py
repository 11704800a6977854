"""run_to_run: the probe alone, again. Once right after its first reply, and once when everything else was played."""

from __future__ import annotations

from detharness.probes.axes.axis import Counters
from detharness.probes.paths.axis import PathAxis, watched_passes
from detharness.probes.paths.bench import PathBench, Play
from detharness.probes.scenario import Probe, Watch, solo_reference
from detharness.targets.paths import PathRun

AT_ONCE, AT_THE_END = "at_once", "at_the_end"


class RunToRun(PathAxis):
    """The same call another time."""

    name = "run_to_run"

    def plays(self, bench: PathBench) -> list[Play]:
        """One repetition per probe and time."""
        return [self._again(bench, probe, level) for level in (AT_ONCE, AT_THE_END) for probe in bench.each]

    def _again(self, bench: PathBench, probe: Probe, level: str) -> Play:
        watch = Watch(probe.id, probe.id, self.name, level, solo_reference(probe.id))
        return Play(
            f"{level}/round={bench.round}/{probe.id}",
            "generate",
            (bench.request(probe),),
            (watch,),
            at_the_end=level == AT_THE_END,
        )

    def exercised(self, watch: Watch, trial: PathRun) -> Counters:
        """One repetition, if the request was alone in every forward pass and without padding."""
        alone = [one == (1, 0) for one in watched_passes(watch, trial)]
        return {"repetitions": 1} if alone and all(alone) else {}
