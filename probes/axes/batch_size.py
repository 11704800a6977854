"""batch_size: the probe alone against the probe with copies of itself.

The probe keeps slot 0, and its neighbours hold its own tokens, so only the number of rows moves: a kernel that
reads its neighbours' content sees nothing new.
"""

from __future__ import annotations

from dataclasses import replace

from detharness.probes.axes.axis import Axis, AxisDepth, Counters, seats
from detharness.probes.bench import Bench
from detharness.probes.scenario import Played, Scenario, Watch, solo_reference

SIZES = (2, 3, 5, 9)  # Two is always there; odd sizes leave tails in row tiles of 2, 4 and 8.


def size_level(size: int) -> str:
    """The level's name in records."""
    return f"size={size}"


class BatchSize(Axis):
    """How many requests share a step."""

    name = "batch_size"
    levels = tuple(size_level(size) for size in SIZES)

    def scenarios(self, bench: Bench, depth: AxisDepth) -> list[Scenario]:
        """One play per probe and size."""
        plays = []
        for probe in bench.shortest(depth.probes):
            plays.append(bench.solo(probe))
            for size in SIZES:
                if not depth.has(size_level(size)):
                    continue
                watch = Watch(probe.id, probe.id, self.name, size_level(size), solo_reference(probe.id))
                plays.append(replace(bench.repeat(probe, size, depth.tokens), watches=(watch,)))
        return plays

    def exercised(self, watch: Watch, trial: Played, reference: Played) -> Counters:
        """Steps in which the probe's rows really stood beside others, and the sizes of those batches."""
        sizes = [len(seat.step.groups) for seat in seats(trial.result.trace, watch.request_id)]
        shared = [size for size in sizes if size > 1]
        return {"batch_sizes": sorted(set(shared)), "shared_steps": len(shared)} if shared else {}
