"""threads: the common play with another number of intra-op threads. A host with one core cannot test it."""

from __future__ import annotations

from detharness.probes.axes.axis import Axis, AxisDepth, Counters, paired_seats
from detharness.probes.bench import Bench
from detharness.probes.scenario import Played, Reference, Scenario, Watch


class Threads(Axis):
    """How many threads compute."""

    name = "threads"
    levels = ("other",)

    def scenarios(self, bench: Bench, depth: AxisDepth) -> list[Scenario]:
        """One thread against what the process has; or all cores where the process has one thread."""
        other = bench.host_threads if bench.baseline_threads == 1 else 1
        if other == bench.baseline_threads or not depth.has("other"):
            return []
        watches = [
            Watch(probe.id, probe.id, self.name, "other", Reference(bench.together_key, probe.id))
            for probe in bench.probes
        ]
        arrivals = bench.all_probes(depth.tokens) + bench.neighbours(depth.tokens)
        key = f"threads/{other}/round={bench.round}"
        return [bench.together(), bench.scenario(key, arrivals, watches, threads=other)]

    def exercised(self, watch: Watch, trial: Played, reference: Played) -> Counters:
        """The two thread counts, as the steps recorded them."""
        pairs = [(mine.step.threads, theirs.step.threads) for mine, theirs in paired_seats(watch, trial, reference)]
        different = [pair for pair in pairs if pair[0] != pair[1]]
        counts = sorted({count for pair in different for count in pair})
        return {"threads": counts, "steps": len(different)} if different else {}
