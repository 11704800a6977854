"""page_size: the common play under another KV page size.

Besides an odd and a doubled size, the borders of the longest prompt: it ends one token into a page ("one_over"),
exactly at a page's end ("even"), and one token short of it ("one_under"); and sizes around the KV grid, which need
not equal the page ("grid_under", "grid", "grid_over"). Page numbers move with the size: what
reads them shows on page_placement.
"""

from __future__ import annotations

from detharness.probes.axes.axis import Axis, AxisDepth, Counters, paired_seats
from detharness.probes.bench import KV_GRID, Bench
from detharness.probes.scenario import Played, Reference, Scenario, Watch

ODD = 7
SMALLEST, LARGEST = 4, 64


def page_with_rest(length: int, rest: int, avoid: int) -> int | None:
    """The largest usual page size that leaves this rest of ``length`` tokens (-1: one short); None if none does."""
    for size in range(LARGEST, SMALLEST - 1, -1):
        if size != avoid and size < length and (length - rest) % size == 0:
            return size
    return None


class PageSize(Axis):
    """Tokens per KV page."""

    name = "page_size"
    levels = ("odd", "double", "one_over", "even", "one_under", "grid_under", "grid", "grid_over")

    def scenarios(self, bench: Bench, depth: AxisDepth) -> list[Scenario]:
        """The common play, then the same under other sizes."""
        plays = [bench.together()]
        base = bench.config.page_size
        longest = max(len(probe.token_ids) for probe in bench.probes)
        sizes = {
            "odd": ODD if base != ODD else ODD + 2,
            "double": 2 * base,
            "one_over": page_with_rest(longest, 1, base),
            "even": page_with_rest(longest, 0, base),
            "one_under": page_with_rest(longest, -1, base),
            "grid_under": KV_GRID - 1,
            "grid": KV_GRID,
            "grid_over": KV_GRID + 1,
        }
        for level, size in sizes.items():
            if size in (None, base) or not depth.has(level):
                continue
            watches = [
                Watch(probe.id, probe.id, self.name, level, Reference(bench.together_key, probe.id))
                for probe in bench.probes
            ]
            arrivals = bench.all_probes(depth.tokens) + bench.neighbours(depth.tokens)
            key = f"page_size/{level}={size}/round={bench.round}"
            plays.append(bench.scenario(key, arrivals, watches, page_size=size))
        return plays

    def exercised(self, watch: Watch, trial: Played, reference: Played) -> Counters:
        """The two page sizes, and steps in which the request's tokens lay on more than one page of either."""
        pairs = [
            (mine, theirs)
            for mine, theirs in paired_seats(watch, trial, reference)
            if mine.step.page_size != theirs.step.page_size
            and max(len(mine.group.block_table), len(theirs.group.block_table)) > 1
        ]
        sizes = {seat.step.page_size for pair in pairs for seat in pair}
        return {"page_sizes": sorted(sizes), "steps_over_pages": len(pairs)} if pairs else {}
