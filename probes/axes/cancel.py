"""cancel: neighbours that are cancelled against neighbours that end there by themselves.

The reference's neighbours ask for just as many tokens as the variant's get before they are cancelled, so every step
holds the same rows. A newcomer takes the pages they leave. "first": cancelled before their second step. "midway":
halfway through the probes' replies. "borders": with their last page one token short of full, full, and one token
into the next. "cached": a copy of the probe is cancelled halfway, and the probe finds the copy's prompt in the cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from detharness.probes.axes.axis import Axis, AxisDepth, Counters, seats
from detharness.probes.bench import Bench, room_for
from detharness.probes.scenario import Played, Probe, Reference, Scenario, Watch
from detharness.targets.protocol import Arrival, PrefixCaching


def tokens_at_border(prompt: int, rest: int, page_size: int) -> int:
    """Reply tokens after which a request holds a whole number of pages, and ``rest`` tokens (-1: one short).

    The last token drawn is not held yet. At least two, so that a decode step is cancelled.
    """
    return 2 + (rest - prompt - 1) % page_size


class Cancel(Axis):
    """How a neighbour goes."""

    name = "cancel"
    levels = ("first", "midway", "borders", "cached")

    def scenarios(self, bench: Bench, depth: AxisDepth) -> list[Scenario]:
        """The probes among neighbours that end early, then among neighbours that are cancelled."""
        probes = bench.shortest(depth.probes)
        tokens = bench.horizon(depth.tokens)
        load = bench.neighbours(depth.tokens)
        border = [
            tokens_at_border(len(a.token_ids), index % 3 - 1, bench.config.page_size) for index, a in enumerate(load)
        ]
        plays = []
        for level, ends in (("first", [1] * len(load)), ("midway", [tokens // 2] * len(load)), ("borders", border)):
            cut = {arrival.request_id: end for arrival, end in zip(load, ends, strict=True) if 0 < end < tokens - 1}
            if depth.has(level) and cut:
                plays += self._pair(bench, depth, level, probes, load, cut)
        if depth.has("cached"):
            plays += [play for probe in probes for play in self._cached(bench, depth, probe)]
        return plays

    def _pair(
        self,
        bench: Bench,
        depth: AxisDepth,
        level: str,
        probes: Sequence[Probe],
        load: Sequence[Arrival],
        ends: Mapping[str, int],
    ) -> list[Scenario]:
        newcomer = replace(load[0], request_id="~newcomer", step=max(ends.values()) + 1)
        arrivals = [*bench.amid(probes, load, depth.tokens), newcomer]
        key = f"cancel/{level}/round={bench.round}"
        watches = [Watch(p.id, p.id, self.name, level, Reference(f"{key}/ended", p.id)) for p in probes]
        return _ended_and_cancelled(bench, key, arrivals, ends, watches)

    def _cached(self, bench: Bench, depth: AxisDepth, probe: Probe) -> list[Scenario]:
        end = max(1, bench.horizon(depth.tokens) // 2)
        copy = bench.arrival(probe, depth.tokens, request_id=f"{probe.id}~copy")
        found = bench.arrival(probe, depth.tokens, step=end + 1)
        if end >= copy.sampling.max_tokens:
            return []
        key = f"cancel/cached/{probe.id}"
        watch = Watch(probe.id, probe.id, self.name, "cached", Reference(f"{key}/ended", probe.id))
        changes = {"prefix_caching": PrefixCaching.ON}
        return _ended_and_cancelled(bench, key, [copy, found], {copy.request_id: end}, [watch], **changes)

    def exercised(self, watch: Watch, trial: Played, reference: Played) -> Counters:
        """Neighbours that were cancelled here and ended by themselves there, and the request's steps after that."""
        reasons = {name: done.finish_reason for name, done in reference.result.completions.items()}
        cancelled = [
            arrival
            for arrival in trial.scenario.arrivals
            if trial.result.completions[arrival.request_id, 0].finish_reason == "aborted"
            and reasons[arrival.request_id, 0] != "aborted"
        ]
        first = min((a.cancel_step for a in cancelled if a.cancel_step is not None), default=None)
        if first is None:
            return {}
        steps = sum(seat.step.step >= first for seat in seats(trial.result.trace, watch.request_id))
        return {"cancelled": len(cancelled), "steps_after": steps} if steps else {}


def _ended_and_cancelled(
    bench: Bench,
    key: str,
    arrivals: Sequence[Arrival],
    ends: Mapping[str, int],
    watches: Sequence[Watch],
    **changes: Any,
) -> list[Scenario]:
    """Two plays of equal room: requests end after ``ends[id]`` tokens by themselves, or are cancelled there."""
    ended = [
        replace(a, sampling=replace(a.sampling, max_tokens=ends[a.request_id])) if a.request_id in ends else a
        for a in arrivals
    ]
    # The prompt's step draws the first token, so a request with ``end`` tokens has taken the steps up to end - 1.
    cancelled = [replace(a, cancel_step=a.step + ends[a.request_id]) if a.request_id in ends else a for a in arrivals]
    changes = {**room_for(arrivals, bench.config), **changes}
    return [
        bench.scenario(f"{key}/ended", ended, **changes),
        bench.scenario(f"{key}/cancelled", cancelled, watches, **changes),
    ]
