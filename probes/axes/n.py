"""n: samples of one request against requests of their own.

"greedy": n samples of one request against n requests of one sample. Greedy, all of them draw the same tokens, so the
batch is the same, row for row; sample i is compared with request i. "sampled": sample i of n against sample i of
i + 1, beside single requests that make up the number. Their tokens differ from the second on, so only the first is
drawn; it is drawn hot, where other noise is another token.
"""

from __future__ import annotations

from dataclasses import replace

from detharness.probes.axes.axis import Axis, AxisDepth, Counters, Seat, paired_seats
from detharness.probes.bench import Bench
from detharness.probes.scenario import Played, Probe, Reference, Scenario, Watch
from detharness.targets.protocol import Arrival

COUNT = 3
HOT = 5.0


class Samples(Axis):
    """How many samples a request asks for."""

    name = "n"
    levels = ("greedy", "sampled")
    watches_twins = True

    def scenarios(self, bench: Bench, depth: AxisDepth) -> list[Scenario]:
        """For each probe: single requests, then the same number as samples of one."""
        plays = []
        for probe in bench.shortest(depth.probes):
            if depth.has("greedy") and probe.greedy:
                plays += self._greedy(bench, probe, depth.tokens)
        for probe in bench.sampling(depth.probes):
            if depth.has("sampled"):
                plays += self._sampled(bench, probe)
        return plays

    def _greedy(self, bench: Bench, probe: Probe, tokens: int | None) -> list[Scenario]:
        singles = bench.repeat(probe, COUNT, tokens)
        watches = [
            Watch(probe.id, probe.id, self.name, "greedy", Reference(singles.key, single.request_id), sample=index)
            for index, single in enumerate(singles.arrivals)
        ]
        together = _asking(bench.arrival(probe, tokens), COUNT)
        return [singles, bench.scenario(f"n/greedy/{probe.id}", [together], watches)]

    def _sampled(self, bench: Bench, probe: Probe) -> list[Scenario]:
        first = bench.arrival(probe, 1)
        hot = replace(first, sampling=replace(first.sampling, temperature=HOT))

        def play(n: int, watches: list[Watch]) -> Scenario:
            singles = [replace(hot, request_id=f"{probe.id}~{index}") for index in range(n, COUNT)]
            return bench.scenario(f"n/sampled={n}/{probe.id}", [_asking(hot, n), *singles], watches)

        fewer = [play(n, []) for n in range(1, COUNT)]
        watches = [
            Watch(
                probe.id,
                probe.id,
                self.name,
                "sampled",
                Reference(held.key, probe.id, sample=index),
                sample=index,
                repeats_solo=False,  # The solo reply is drawn at its own temperature.
            )
            for index, held in enumerate(fewer)
        ]
        return [*fewer, play(COUNT, watches)]

    def exercised(self, watch: Watch, trial: Played, reference: Played) -> Counters:
        """Steps in which the sample stood beside more of its own request's samples than its reference did."""
        pairs = paired_seats(watch, trial, reference)
        steps = sum(_siblings(mine) > _siblings(theirs) for mine, theirs in pairs)
        return {"steps_beside_siblings": steps, "samples": [watch.sample]} if steps else {}


def _asking(arrival: Arrival, n: int) -> Arrival:
    return replace(arrival, sampling=replace(arrival.sampling, n=n))


def _siblings(seat: Seat) -> int:
    return sum(group.request_id == seat.group.request_id for group in seat.others)
