"""batch_size: the probe alone against the probe with copies of itself.

The probe keeps slot 0, and its neighbours hold its own tokens, so only the number of rows moves: a kernel that
reads its neighbours' content sees nothing new. "sampled": the same for a probe that draws. "lengths": the same with
prompts that end around the ends of a page and of the KV grid.
"""

from __future__ import annotations

from dataclasses import replace

from detharness.probes.axes.axis import Axis, AxisDepth, Counters, seats
from detharness.probes.bench import Bench
from detharness.probes.scenario import Played, Probe, Scenario, Watch, solo_reference

FEW = 3
SIZES = (2, 3, 5, 9)  # Two is always there; odd sizes leave tails in row tiles of 2, 4 and 8.


def size_level(size: int) -> str:
    """The level's name in records."""
    return f"size={size}"


class BatchSize(Axis):
    """How many requests share a step."""

    name = "batch_size"
    levels = (*(size_level(size) for size in SIZES), "sampled", "lengths")
    watches_twins = True

    def scenarios(self, bench: Bench, depth: AxisDepth) -> list[Scenario]:
        """One play per probe and size; borders of length for the shortest probe."""
        plays = []
        for probe in bench.shortest(depth.probes):
            plays.append(bench.solo(probe))
            for size in SIZES:
                if not depth.has(size_level(size)):
                    continue
                watch = Watch(probe.id, probe.id, self.name, size_level(size), solo_reference(probe.id))
                plays.append(replace(bench.repeat(probe, size, depth.tokens), watches=(watch,)))
        if depth.has("sampled"):
            for probe in bench.sampling(depth.probes):
                watch = Watch(probe.id, probe.id, self.name, "sampled", solo_reference(probe.id))
                plays.append(replace(bench.repeat(probe, FEW, depth.tokens), watches=(watch,)))
        if depth.has("lengths"):
            for probe in bench.shortest(1):
                plays += self._lengths(bench, probe)
        return plays

    def _lengths(self, bench: Bench, probe: Probe) -> list[Scenario]:
        plays = []
        for held in bench.around_borders(probe):
            name = held.arrival.request_id
            watch = Watch(probe.id, name, self.name, "lengths", held.reference, offset=held.known)
            copies = [held.arrival, *(replace(held.arrival, request_id=f"{name}~{i}") for i in range(1, FEW))]
            plays += [held.alone, bench.scenario(f"batch_size/lengths/{name}", copies, [watch])]
        return plays

    def exercised(self, watch: Watch, trial: Played, reference: Played) -> Counters:
        """Steps in which the probe's rows really stood beside others, and the sizes of those batches."""
        sizes = [len(seat.step.groups) for seat in seats(trial.result.trace, watch.request_id)]
        shared = [size for size in sizes if size > 1]
        return {"batch_sizes": sorted(set(shared)), "shared_steps": len(shared)} if shared else {}
