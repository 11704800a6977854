"""padding: batches on either side of the sizes at which engines pad, and kernels change their way of working.

"batch": as many requests as a border and one more, against one less. Borders are powers of two, for which graphs are
captured, and the kernel set's dispatch borders. All neighbours are the same two tokens, so what crosses the border
adds nothing new. "width": a neighbour's prompt as long as a width to which queries and keys are padded, and one
longer, against one shorter. "rows": the same for the rows of that step. The neighbour ends with its prompt, so every
later step is the probe's alone.

How many requests or rows there are is the matter of another axis. Here the reference is one short of the border, and
the premise is that it equals the reply of the probe alone: only what happens at the border is left to move.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from detharness.probes.axes.axis import Axis, AxisDepth, Counters, paired_seats
from detharness.probes.bench import Bench, room_for
from detharness.probes.scenario import Played, Probe, Reference, Scenario, Watch
from detharness.targets.protocol import Arrival, StepRecord

WIDTHS = (8, 16, 32, 64, 128, 256, 512)
BATCHES = (4, 8, 16, 32, 64)
BEYOND = 2  # Widths and row counts played: the first ones beyond the probe's own length, which hides smaller ones.
TOKENS = 4  # In "batch" every step holds the same number of rows; in the others only the first one matters.

_MEASURES: Mapping[str, Callable[[StepRecord], int]] = {
    "batch": lambda step: len(step.groups),
    "width": lambda step: max(len(group.token_ids) for group in step.groups),
    "rows": lambda step: step.rows,
}


class Padding(Axis):
    """How full a bucket is."""

    name = "padding"
    levels = ("batch", "width", "rows")

    def scenarios(self, bench: Bench, depth: AxisDepth) -> list[Scenario]:
        """The shortest probe, or as many as asked, around each border."""
        return [
            play
            for probe in bench.shortest(depth.probes or 1)
            for level in self.levels
            if depth.has(level)
            for border in self._borders(bench, probe, level)
            for play in self._around(bench, probe, level, border)
        ]

    def _borders(self, bench: Bench, probe: Probe, level: str) -> list[int]:
        length = len(probe.token_ids)
        if level == "batch":
            return sorted({*BATCHES, *(size for size in bench.dispatch_borders if 3 <= size <= BATCHES[-1])})
        if level == "width":
            return [width for width in WIDTHS if width > length + 1][:BEYOND]
        return [rows for rows in sorted({*WIDTHS, *bench.dispatch_borders}) if rows > length + 2][:BEYOND]

    def _around(self, bench: Bench, probe: Probe, level: str, border: int) -> list[Scenario]:
        sizes = {size: self._arrivals(bench, probe, level, size) for size in (border - 1, border, border + 1)}
        room = room_for(sizes[border + 1], bench.config)
        key = f"padding/{level}={border}/{probe.id}/round={bench.round}"
        short = Reference(f"{key}/{border - 1}", probe.id)
        watch = Watch(probe.id, probe.id, self.name, level, short, premise=short)
        return [
            bench.scenario(f"{key}/{size}", arrivals, [watch] if size >= border else [], **room)
            for size, arrivals in sizes.items()
        ]

    def _arrivals(self, bench: Bench, probe: Probe, level: str, size: int) -> list[Arrival]:
        fillers = bench.fillers("padding")
        watched = bench.arrival(probe, TOKENS)
        if level == "batch":
            same = Arrival(0, "~same", fillers.tokens(2), fillers.greedy(TOKENS))
            return [watched, *(replace(same, request_id=f"~same-{index}") for index in range(size - 1))]
        length = size if level == "width" else size - len(probe.token_ids)
        # Longer by tokens it holds already: nothing new is said.
        tokens = (fillers.tokens(1) * length)[:length]
        return [watched, Arrival(0, "~long", tokens, fillers.greedy(1))]

    def exercised(self, watch: Watch, trial: Played, reference: Played) -> Counters:
        """Steps with more requests, a wider prompt, or more rows than in the reference, and how many there were."""
        measure = _MEASURES[watch.level]
        pairs = [(measure(mine.step), measure(theirs.step)) for mine, theirs in paired_seats(watch, trial, reference)]
        grown = [mine for mine, theirs in pairs if mine > theirs]
        return {f"{watch.level}_sizes": sorted(set(grown)), "steps_across": len(grown)} if grown else {}
