"""slot: the same neighbours, another place among them.

"copies" compares copies of one probe inside one play: same step, same neighbours, only the slot differs; "sampled"
does so for a probe that draws.
"reversed" and "rotated" put probes and foreign fillers in another order; rotations reach every slot.
"""

from __future__ import annotations

from dataclasses import replace

from detharness.probes.axes.axis import Axis, AxisDepth, Counters, paired_seats
from detharness.probes.axes.batch_size import FEW, SIZES
from detharness.probes.bench import Bench
from detharness.probes.scenario import Played, Probe, Reference, Scenario, Watch
from detharness.targets.protocol import Arrival


class Slot(Axis):
    """Which row of the batch a request holds."""

    name = "slot"
    levels = (*(f"copies={size}" for size in SIZES), "sampled", "reversed", "rotated")
    watches_twins = True

    def scenarios(self, bench: Bench, depth: AxisDepth) -> list[Scenario]:
        """Copies of each probe, and the common play in other orders."""
        plays = [
            self._copies(bench, probe, size, f"copies={size}", depth)
            for probe in bench.shortest(depth.probes)
            for size in SIZES
            if depth.has(f"copies={size}")
        ]
        if depth.has("sampled"):
            plays += [self._copies(bench, probe, FEW, "sampled", depth) for probe in bench.sampling(depth.probes)]
        order = bench.all_probes(depth.tokens) + bench.neighbours(depth.tokens)
        if depth.has("reversed"):
            plays += [bench.together(), self._reordered(bench, order[::-1], "reversed", "reversed")]
        if depth.has("rotated"):
            plays.append(bench.together())
            for shift in range(1, len(order)):
                plays.append(self._reordered(bench, order[shift:] + order[:shift], "rotated", f"rotated={shift}"))
        return plays

    def _copies(self, bench: Bench, probe: Probe, size: int, level: str, depth: AxisDepth) -> Scenario:
        play = bench.repeat(probe, size, depth.tokens)
        first = Reference(play.key, probe.id)
        copies = (arrival.request_id for arrival in play.arrivals[1:])
        return replace(play, watches=tuple(Watch(probe.id, c, self.name, level, first) for c in copies))

    def _reordered(self, bench: Bench, order: list[Arrival], level: str, name: str) -> Scenario:
        watches = [
            Watch(probe.id, probe.id, self.name, level, Reference(bench.together_key, probe.id))
            for probe in bench.probes
        ]
        return bench.scenario(f"slot/{name}/round={bench.round}", order, watches)

    def exercised(self, watch: Watch, trial: Played, reference: Played) -> Counters:
        """Steps in which the request sat in another slot than its reference, and which slots it had."""
        pairs = paired_seats(watch, trial, reference)
        moved = [(mine.index, theirs.index) for mine, theirs in pairs if mine.index != theirs.index]
        return {"slots": sorted({slot for pair in moved for slot in pair}), "moved_steps": len(moved)} if moved else {}
