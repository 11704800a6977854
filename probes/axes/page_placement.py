"""page_placement: the same pages, elsewhere, with poison where nothing should be read.

"permuted_nan": pages in a random order of the pool, every free page and unwritten slot NaN. "permuted" and "nan"
are its two halves, to tell them apart.
"""

from __future__ import annotations

from typing import Any

from detharness.probes.axes.axis import Axis, AxisDepth, Counters, paired_seats
from detharness.probes.bench import Bench
from detharness.probes.scenario import Played, Reference, Scenario, Watch
from detharness.targets.protocol import FreePages, PagePlacement


class PagePlacementAxis(Axis):
    """Which pages a request holds, and what the others contain."""

    name = "page_placement"
    levels = ("permuted_nan", "permuted", "nan")

    def scenarios(self, bench: Bench, depth: AxisDepth) -> list[Scenario]:
        """The common play, then the same on other pages."""
        permuted: dict[str, Any] = {
            "page_placement": PagePlacement.PERMUTED,
            "placement_seed": bench.seed + bench.round,
        }
        poison: dict[str, Any] = {"free_pages": FreePages.NAN}
        changes = {"permuted_nan": {**permuted, **poison}, "permuted": permuted, "nan": poison}
        plays = [bench.together()]
        for level in self.levels:
            if not depth.has(level):
                continue
            watches = [
                Watch(probe.id, probe.id, self.name, level, Reference(bench.together_key, probe.id))
                for probe in bench.probes
            ]
            arrivals = bench.all_probes(depth.tokens) + bench.neighbours(depth.tokens)
            key = f"page_placement/{level}/round={bench.round}"
            plays.append(bench.scenario(key, arrivals, watches, **changes[level]))
        return plays

    def exercised(self, watch: Watch, trial: Played, reference: Played) -> Counters:
        """Steps on other pages than the reference's, and steps whose last page had poisoned slots."""
        moved = poisoned = 0
        nan = trial.scenario.config.free_pages is FreePages.NAN
        for mine, theirs in paired_seats(watch, trial, reference):
            moved += mine.group.block_table != theirs.group.block_table
            filled = mine.group.start_position + len(mine.group.token_ids)
            poisoned += nan and filled % mine.step.page_size != 0
        return {"steps_on_other_pages": moved, "steps_beside_poison": poisoned} if moved or poisoned else {}
