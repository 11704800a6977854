"""arrival: the same company, come at other steps.

"later": the probe alone, on an engine that has stood idle. "neighbours": the neighbours were there first; each is
another probe in the middle of its reply, and came a step earlier or later with that much less or more of the reply
in its prompt. From the probe's first step on, both plays hold the same rows.

"joins": a neighbour that stays, against one that leaves and is back in the next step with all it has said as its
prompt. One step differs: the neighbour's rows are prefilled beside the probe's decode, instead of one being decoded.

What was decoded in one play is prefilled in the other, and may hold other bits. A kernel that reads its neighbours
would move with them, so both levels have a premise: the reference equals the reply of the probe alone.
"""

from __future__ import annotations

from dataclasses import replace

from detharness.probes.axes.axis import Axis, AxisDepth, Counters, paired_seats, seats
from detharness.probes.bench import Bench
from detharness.probes.scenario import Played, Probe, Reference, Scenario, Watch, solo_reference
from detharness.targets.protocol import Arrival

IDLE_STEPS = (1, 7)
PROBE_STEP = 4  # When the probe comes to neighbours that are already there.
KNOWN = 2  # Tokens of its reply that a neighbour which comes at step 0 brings with it.
NEIGHBOUR_STEPS = {"reference": 2, "one_later": 3, "one_earlier": 1, "first": 0}


class ArrivalTime(Axis):
    """When requests arrive."""

    name = "arrival"
    levels = ("later", "neighbours", "joins")

    def scenarios(self, bench: Bench, depth: AxisDepth) -> list[Scenario]:
        """For each probe: alone but later; beside neighbours of other ages; beside one that joins in again."""
        plays = []
        for probe in bench.shortest(depth.probes):
            if depth.has("later"):
                plays += [bench.solo(probe), *(self._later(bench, depth, probe, step) for step in IDLE_STEPS)]
            company = [other for other in bench.longest(None) if other is not probe][:2] or [probe]
            if depth.has("neighbours"):
                plays += self._neighbours(bench, depth, probe, company)
            if depth.has("joins"):
                plays += self._joins(bench, depth, probe, company[-1])
        return plays

    def _later(self, bench: Bench, depth: AxisDepth, probe: Probe, step: int) -> Scenario:
        watch = Watch(probe.id, probe.id, self.name, "later", solo_reference(probe.id))
        return bench.scenario(
            f"arrival/later={step}/{probe.id}", [bench.arrival(probe, depth.tokens, step=step)], [watch]
        )

    def _neighbours(self, bench: Bench, depth: AxisDepth, probe: Probe, company: list[Probe]) -> list[Scenario]:
        last = PROBE_STEP + bench.horizon(depth.tokens)
        if any(len(bench.replies.get(other.id, ())) < KNOWN + PROBE_STEP for other in company):
            return []

        def come(other: Probe, step: int) -> Arrival:
            """``other`` as it stands ``step`` steps on; whatever the step, it ends with the same one."""
            going_on = continued(other, bench.replies[other.id], KNOWN + step, f"{other.id}~beside")
            return replace(going_on, step=step, sampling=replace(going_on.sampling, max_tokens=last - step))

        plays = []
        watched = bench.arrival(probe, depth.tokens, step=PROBE_STEP)
        key = f"arrival/neighbours/{probe.id}"
        reference = Reference(f"{key}/reference", probe.id)
        for name, step in NEIGHBOUR_STEPS.items():
            watch = Watch(probe.id, probe.id, self.name, "neighbours", reference, premise=reference)
            arrivals = [*(come(other, step) for other in company), watched]
            plays.append(bench.scenario(f"{key}/{name}", arrivals, [] if name == "reference" else [watch]))
        return plays

    def _joins(self, bench: Bench, depth: AxisDepth, probe: Probe, other: Probe) -> list[Scenario]:
        tokens = min(bench.horizon(depth.tokens), probe.sampling.max_tokens)
        reply = bench.replies.get(other.id, ())
        steps = [
            step
            for step in (1, 2, tokens // 2, tokens // 2 + 1)
            # A page taken in the very step in which the neighbour's are free would be one of those.
            if 0 < step < min(tokens - 1, len(reply)) and (len(probe.token_ids) + step - 1) % bench.config.page_size
        ]
        stays = Arrival(0, "~stays", other.token_ids, replace(other.sampling, max_tokens=tokens))
        watched = bench.arrival(probe, depth.tokens)
        key = f"arrival/stays/{probe.id}"
        reference = Reference(key, probe.id)
        plays = []
        for step in sorted(set(steps)):
            leaves = replace(stays, sampling=replace(stays.sampling, max_tokens=step))
            again = replace(continued(other, reply, step, "~again"), step=step)
            again = replace(again, sampling=replace(again.sampling, max_tokens=tokens - step))
            watch = Watch(probe.id, probe.id, self.name, "joins", reference, premise=reference)
            plays.append(bench.scenario(f"arrival/joins={step}/{probe.id}", [watched, leaves, again], [watch]))
        return [bench.scenario(key, [watched, stays]), *plays] if plays else []

    def exercised(self, watch: Watch, trial: Played, reference: Played) -> Counters:
        """By level: steps of idling; steps in equal company that came at other steps; prefills beside a decode."""
        pairs = paired_seats(watch, trial, reference)
        if watch.level == "later":
            idle = pairs[0][0].step.step - pairs[0][1].step.step
            return {"idle_steps": idle} if idle else {}
        if watch.level == "neighbours":
            equal = [mine for mine, theirs in pairs if mine.others and mine.tokens_beside == theirs.tokens_beside]
            came = [[a.step for a in play.scenario.arrivals] for play in (trial, reference)]
            return {"steps_beside_other_ages": len(equal)} if equal and came[0] != came[1] else {}
        joined = sum(
            mine.group.kind == "decode" and any(group.kind == "prefill" for group in mine.others)
            for mine in seats(trial.result.trace, watch.request_id)
        )
        return {"prefills_beside_decode": joined} if joined else {}


def continued(probe: Probe, reply: tuple[int, ...], known: int, request_id: str) -> Arrival:
    """A probe with the head of its reply as part of its prompt: it goes on as the probe itself would."""
    return Arrival(0, request_id, probe.token_ids + reply[:known], probe.sampling)
