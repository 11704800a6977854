"""content: other people's tokens.

"foreign": fillers of the same lengths in the same slots, other tokens. "ragged": fillers of other lengths, one of
them longer than every probe (the width of right padding changes; the number of requests does not). "long": all of
them longer than every probe, which moves averages. How they are sampled, and under which seeds, does not change.
"""

from __future__ import annotations

from dataclasses import replace

from detharness.probes.axes.axis import Axis, AxisDepth, Counters, paired_seats
from detharness.probes.bench import TOGETHER, Bench
from detharness.probes.scenario import Played, Reference, Scenario, Watch
from detharness.targets.protocol import Arrival


class Content(Axis):
    """What the neighbours say."""

    name = "content"
    levels = ("foreign", "ragged", "long")

    def scenarios(self, bench: Bench, depth: AxisDepth) -> list[Scenario]:
        """The common play, then the same with other fillers."""
        plays = [bench.together()]
        base = bench.neighbours(depth.tokens)
        lengths = [len(arrival.token_ids) for arrival in base]
        others = bench.fillers("content")
        ragged = [bench.longer_than_all(), *others.lengths(len(lengths) - 1)]
        long = [bench.longer_than_all()] * len(lengths)
        for level, said in (("foreign", lengths), ("ragged", ragged), ("long", long)):
            load = [
                replace(arrival, token_ids=others.tokens(length)) for arrival, length in zip(base, said, strict=True)
            ]
            if depth.has(level):
                plays.append(self._play(bench, depth, level, load))
        return plays

    def _play(self, bench: Bench, depth: AxisDepth, level: str, neighbours: list[Arrival]) -> Scenario:
        watches = [
            Watch(probe.id, probe.id, self.name, level, Reference(bench.together_key, probe.id))
            for probe in bench.probes
        ]
        arrivals = bench.all_probes(depth.tokens) + neighbours
        return bench.scenario(f"content/{level}/{TOGETHER}/round={bench.round}", arrivals, watches)

    def exercised(self, watch: Watch, trial: Played, reference: Played) -> Counters:
        """Steps in which the request had as many neighbours as its reference, holding other tokens."""
        changed = 0
        for mine, theirs in paired_seats(watch, trial, reference):
            left = [group.token_ids for group in mine.others]
            right = [group.token_ids for group in theirs.others]
            changed += bool(left) and len(left) == len(right) and left != right
        return {"steps_beside_other_content": changed} if changed else {}
