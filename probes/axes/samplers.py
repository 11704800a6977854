"""samplers: the same neighbours with the same tokens, drawn another way.

The reference's neighbours are greedy. In the variants they sample under a mask that leaves one token, so they draw
what they drew greedily, through the code of another sampler: top-k, top-p, min-p, or one that also reports processed
logprobs. Greedy probes are watched in one play; probes that sample (or the twins of greedy ones) in a play of
their own, because a sampled probe would itself be a sampled neighbour to a greedy one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from detharness.probes.axes.axis import Axis, AxisDepth, Counters, steps_in_equal_company
from detharness.probes.bench import Bench
from detharness.probes.scenario import Played, Probe, Reference, Scenario, Watch
from detharness.probes.traffic.fillers import forced

MASKS: dict[str, dict[str, Any]] = {
    "top_k": {"top_k": 1},
    "top_p": {"top_p": 1e-9},
    "min_p": {"min_p": 1.0},
    "processed": {"top_k": 1, "logprobs": 0, "processed_logprobs": True},
}


class Samplers(Axis):
    """How the neighbours' tokens are drawn."""

    name = "samplers"
    levels = tuple(MASKS)
    watches_twins = True

    def scenarios(self, bench: Bench, depth: AxisDepth) -> list[Scenario]:
        """Greedy probes beside greedy neighbours, then beside sampled ones; the same for probes that sample."""
        greedy = [probe for probe in bench.shortest(depth.probes) if probe.greedy]
        plays = self._plays(bench, depth, greedy, "greedy") if greedy else []
        return plays + self._plays(bench, depth, bench.sampling(depth.probes), "sampled")

    def _plays(self, bench: Bench, depth: AxisDepth, probes: Sequence[Probe], kind: str) -> list[Scenario]:
        load = bench.neighbours(depth.tokens)
        key = f"samplers/{kind}/beside greedy/round={bench.round}"
        plays = [bench.scenario(key, bench.amid(probes, load, depth.tokens))]
        for level, mask in MASKS.items():
            if not depth.has(level):
                continue
            watches = [Watch(probe.id, probe.id, self.name, level, Reference(key, probe.id)) for probe in probes]
            arrivals = bench.amid(probes, [forced(arrival, **mask) for arrival in load], depth.tokens)
            plays.append(bench.scenario(f"samplers/{kind}/{level}/round={bench.round}", arrivals, watches))
        return plays

    def exercised(self, watch: Watch, trial: Played, reference: Played) -> Counters:
        """Steps beside neighbours with the same tokens, greedy in the reference and sampled in the trial."""
        mine, theirs = (sum(a.sampling.temperature > 0 for a in play.scenario.arrivals) for play in (trial, reference))
        steps = steps_in_equal_company(watch, trial, reference)
        return {"steps_beside_samplers": steps} if steps and mine > theirs else {}
