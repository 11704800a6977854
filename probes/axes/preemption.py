"""preemption: the request loses its blocks and is computed again.

Whatever preempts also changes who shares the batch, which would be blamed on preemption. So the reference is made
to match: a probe and one older neighbour in a pool that holds both; the neighbour ends exactly where, in the
variant's small pool, the probe is preempted. In the variant the probe comes back when the neighbour is gone. Token
for token both are drawn in the same company. One thing cannot be matched: rows that were first computed beside the
neighbour are computed again alone, on other pages. So the comparison has a premise: the matched reference equals
the solo reply. Where company or pages alone move bits, preemption is not told apart and the trial counts for no axis.

"reserve": the same small pool under the policy that never preempts. The probe waits, then runs alone; it is
compared with the probe alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from detharness.probes.axes.axis import Axis, AxisDepth, Counters, seats
from detharness.probes.bench import Bench, pages
from detharness.probes.scenario import Played, Probe, Reference, Scenario, Watch, solo_reference
from detharness.targets.protocol import Arrival, MemoryPolicy


@dataclass(frozen=True)
class Squeeze:
    """A pool of ``num_blocks`` pages that is full when the probe has ``lost_at`` tokens of its reply."""

    lost_at: int
    num_blocks: int


def squeeze(prompt: int, neighbour: int, earliest: int, page_size: int) -> Squeeze:
    """Where two requests that arrive together run out of pages, at or after reply token ``earliest``."""

    def held(tokens: int) -> int:
        return pages(prompt + tokens, page_size) + pages(neighbour + tokens, page_size)

    lost_at = max(1, earliest)
    while held(lost_at) == held(lost_at - 1):
        lost_at += 1
    return Squeeze(lost_at, held(lost_at - 1))


class Preemption(Axis):
    """Losing one's blocks to somebody else."""

    name = "preemption"
    levels = ("recompute", "reserve")

    def scenarios(self, bench: Bench, depth: AxisDepth) -> list[Scenario]:
        """For each probe: the matched reference, then the small pool."""
        plays = []
        for probe in bench.longest(depth.probes):
            tokens = min(bench.horizon(depth.tokens), probe.sampling.max_tokens)
            fillers = bench.fillers(f"preemption/{probe.id}")
            earliest = tokens // 2
            # As short as leaves the probe room for its whole reply once the neighbour is gone: a neighbour longer
            # than the probe would set the width of right padding, another difference to the probe alone.
            length = tokens - 2 * earliest + bench.config.page_size + 1
            older = Arrival(0, "~older", fillers.tokens(length), fillers.greedy(tokens))
            point = squeeze(len(probe.token_ids), length, earliest, bench.config.page_size)
            if point.lost_at >= tokens - 1:  # The reply ends before the pool does.
                continue
            plays += self._plays(bench, depth, probe, tokens, older, point)
        return plays

    def _plays(
        self, bench: Bench, depth: AxisDepth, probe: Probe, tokens: int, older: Arrival, point: Squeeze
    ) -> list[Scenario]:
        def traffic(older_tokens: int) -> list[Arrival]:
            sampling = replace(older.sampling, max_tokens=older_tokens)
            return [replace(older, sampling=sampling), bench.arrival(probe, tokens)]

        plays = []
        key = f"preemption/matched/{probe.id}/round={bench.round}"
        if depth.has("recompute"):
            beside = Watch(probe.id, probe.id, None, "matched", solo_reference(probe.id))
            company = Reference(key, probe.id)
            lost = Watch(probe.id, probe.id, self.name, "recompute", company, premise=company)
            plays += [
                bench.scenario(key, traffic(point.lost_at), [beside]),
                bench.scenario(
                    f"preemption/recompute/{probe.id}/round={bench.round}",
                    traffic(point.lost_at + 1),  # It still runs in the step in which the probe gives way.
                    [lost],
                    num_blocks=point.num_blocks,
                    memory_policy=MemoryPolicy.RECOMPUTE,
                ),
            ]
        if depth.has("reserve"):
            waits = Watch(probe.id, probe.id, self.name, "reserve", solo_reference(probe.id))
            plays += [
                bench.solo(probe),
                bench.scenario(
                    f"preemption/reserve/{probe.id}/round={bench.round}",
                    traffic(point.lost_at + 1),
                    [waits],
                    num_blocks=point.num_blocks,
                    memory_policy=MemoryPolicy.RESERVE,
                ),
            ]
        return plays

    def exercised(self, watch: Watch, trial: Played, reference: Played) -> Counters:
        """Preemptions and recomputed rows of this request; under RESERVE the steps it waited."""
        taken = seats(trial.result.trace, watch.request_id)
        lost = sum(request_id == watch.request_id for step in trial.result.trace for request_id, _ in step.preempted)
        rows = sum(len(seat.group.token_ids) for seat in taken if seat.group.kind == "recompute")
        if lost and rows:
            return {"preemptions": lost, "recomputed_rows": rows}
        arrived = next(a.step for a in trial.scenario.arrivals if a.request_id == watch.request_id)
        waited = taken[0].step.step - arrived if taken else 0
        if trial.scenario.config.memory_policy is MemoryPolicy.RESERVE and waited > 0:
            return {"waited_steps": waited}
        return {}
