"""seeds: the same neighbours, other noise keys.

The watched probes sample (their twins where they are greedy), and so do the neighbours, under a mask that leaves one
token: whatever their seeds, they draw the same tokens, so their content stays equal. "other": other seeds. "none":
no seed at all, so the engine draws one for each. "same": the first probe's own seed. Half of the neighbours stand
before the probes and half behind, because a key taken from the first row, or from the last, is somebody else's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from detharness.probes.axes.axis import Axis, AxisDepth, Counters, steps_in_equal_company
from detharness.probes.bench import Bench
from detharness.probes.scenario import Played, Reference, Scenario, Watch
from detharness.probes.traffic.fillers import forced
from detharness.targets.protocol import Arrival


class Seeds(Axis):
    """Under which seeds the neighbours sample."""

    name = "seeds"
    levels = ("other", "none", "same")
    watches_twins = True

    def scenarios(self, bench: Bench, depth: AxisDepth) -> list[Scenario]:
        """The probes among neighbours that sample, then the same with the neighbours' seeds changed."""
        probes = bench.sampling(depth.probes)
        draw = bench.fillers("seeds").random
        changes: dict[str, Callable[[Arrival], int | None]] = {
            "other": lambda arrival: draw.getrandbits(62),
            "none": lambda arrival: None,
            "same": lambda arrival: probes[0].sampling.seq_seed,
        }
        load = [forced(arrival, top_k=1) for arrival in bench.neighbours(depth.tokens)]
        key = f"seeds/own/round={bench.round}"
        plays = [bench.scenario(key, bench.amid(probes, load, depth.tokens))]
        for level, seed_of in changes.items():
            if not depth.has(level):
                continue
            other = [replace(a, sampling=replace(a.sampling, seq_seed=seed_of(a))) for a in load]
            watches = [Watch(probe.id, probe.id, self.name, level, Reference(key, probe.id)) for probe in probes]
            arrivals = bench.amid(probes, other, depth.tokens)
            plays.append(bench.scenario(f"seeds/{level}/round={bench.round}", arrivals, watches))
        return plays

    def exercised(self, watch: Watch, trial: Played, reference: Played) -> Counters:
        """Steps beside neighbours with the same tokens, drawn under other seeds."""
        mine, theirs = ([a.sampling.seq_seed for a in play.scenario.arrivals] for play in (trial, reference))
        steps = steps_in_equal_company(watch, trial, reference)
        return {"steps_beside_other_seeds": steps} if steps and mine != theirs else {}
