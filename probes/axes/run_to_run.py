"""run_to_run: the very same play once more, after all the others.

Nothing differs but what the target remembers: a generator's stream that went on, a buffer that was not cleared, a
choice made by the clock. Such a target moves on every axis, so this one is played last and explains them all.
"""

from __future__ import annotations

from dataclasses import replace

from detharness.probes.axes.axis import Axis, AxisDepth, Counters
from detharness.probes.bench import Bench
from detharness.probes.scenario import Played, Scenario, Watch, solo_reference


class RunToRun(Axis):
    """Whether the same run gives the same reply."""

    name = "run_to_run"
    levels = ("again",)
    watches_twins = True

    def scenarios(self, bench: Bench, depth: AxisDepth) -> list[Scenario]:
        """Each probe alone again, and the sampled twins of greedy ones."""
        count = depth.probes
        probes = {probe.id: probe for probe in (*bench.shortest(count), *bench.sampling(count))}
        return [
            replace(
                bench.solo(probe),
                key=f"run_to_run/{probe.id}",
                watches=(Watch(probe.id, probe.id, self.name, "again", solo_reference(probe.id)),),
            )
            for probe in probes.values()
            if depth.has("again")
        ]

    def exercised(self, watch: Watch, trial: Played, reference: Played) -> Counters:
        """One more run of the same script."""
        same = (trial.scenario.arrivals, trial.scenario.config) == (
            reference.scenario.arrivals,
            reference.scenario.config,
        )
        return {"runs_again": 1} if same and trial.result is not reference.result else {}
