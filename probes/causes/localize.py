"""Two runs that differ, replayed with every operator observed: the first operator and layer that part them.

The first pass keeps rolling hashes of all rows of both plays. Rows of the compared reply are then walked in the order
in which the trial computed them, each against the reference's row at the same absolute position; the first operator
that differs had equal inputs on both sides. The second pass keeps the bits of that one row.

Keys and values are seen where they are read: a fault in writing or keeping them shows as "attention".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detharness.probes.causes.cause import OUTSIDE, Cause, plans_of, schedule_of
from detharness.probes.causes.failure import Play
from detharness.probes.causes.lineage import RowKey, lineage
from detharness.probes.causes.replies import aligned_replies
from detharness.probes.causes.trails import Site, Trails
from detharness.probes.causes.ulp import ulp_histogram
from detharness.probes.divergence import Comparison, Observation, compare
from detharness.probes.scenario import Sample, Scenario
from detharness.targets.protocol import PlayResult, ScriptedTarget


@dataclass(frozen=True)
class _Pair:
    """Two requests to compare, each in its play; both plays are one where the scenarios are."""

    target: ScriptedTarget
    trial: Scenario | Play
    trial_sample: Sample
    reference: Scenario | Play
    reference_sample: Sample

    def play(self) -> tuple[PlayResult, PlayResult]:
        """The trial and the reference, unobserved."""
        trial = self.target.play(self.trial.arrivals, self.trial.config)
        if self._one_play:
            return trial, trial
        return trial, self.target.play(self.reference.arrivals, self.reference.config)

    @property
    def _one_play(self) -> bool:
        return (self.trial.arrivals, self.trial.config) == (self.reference.arrivals, self.reference.config)

    def observed(self) -> tuple[_Observed, _Observed]:
        """The trial and the reference with every operator's rows hashed."""
        trial = self._observe(self.trial)
        return trial, trial if self._one_play else self._observe(self.reference)

    def _observe(self, scenario: Scenario | Play) -> _Observed:
        trails = Trails()
        with self.target.observe(None, None, None, trails.take):
            return _Observed(self.target.play(scenario.arrivals, scenario.config), trails)

    def replies(self, trial: PlayResult, reference: PlayResult) -> tuple[Observation, Observation]:
        """The reference's reply and the trial's, aligned."""
        return aligned_replies(reference.completions[self.reference_sample], trial.completions[self.trial_sample])

    def compared(self, trial: PlayResult, reference: PlayResult) -> Comparison:
        """The trial's reply against the reference's."""
        return compare(*self.replies(trial, reference), self.trial.config.dtype)


@dataclass(frozen=True)
class _Observed:
    result: PlayResult
    trails: Trails


def localize(
    target: ScriptedTarget,
    trial: Scenario | Play,
    trial_request: str,
    reference: Scenario | Play,
    reference_request: str,
    samples: tuple[int, int] = (0, 0),
) -> Cause | None:
    """The first operator that parts two replies; None where they do not differ in the first place.

    ``reference`` may be the same scenario as ``trial``, with another request in it. Both requests carry logprobs. Their
    replies are compared by absolute position, so a prompt may hold the head of the other's reply. ``samples``: which of
    the trial's request and of the reference's.
    Takes up to six plays, four of them operator by operator.
    """
    pair = _Pair(target, trial, (trial_request, samples[0]), reference, (reference_request, samples[1]))
    plain = pair.play()
    if not pair.compared(*plain).moved:
        return None
    mine, theirs = pair.observed()
    same_bits = all(
        _equal(before, after)
        for before, after in zip(pair.replies(*plain), pair.replies(mine.result, theirs.result), strict=True)
    )
    comparison = pair.compared(mine.result, theirs.result)
    parting, walked = _first_parting(pair, mine, theirs, comparison)
    if parting is not None:
        return _found(pair, mine, theirs, parting, same_bits, walked)
    if not comparison.moved:
        return Cause("not_reproduced", same_bits_observed=same_bits, rows_before=walked)
    return _after_the_logits(pair, mine, theirs, comparison, same_bits, walked)


def _equal(left: Observation, right: Observation) -> bool:
    return left.token_ids == right.token_ids and not compare(left, right, "fp32").moved


@dataclass(frozen=True)
class _Parting:
    site: int
    row: RowKey
    reference_row: RowKey


def _first_parting(
    pair: _Pair, mine: _Observed, theirs: _Observed, comparison: Comparison
) -> tuple[_Parting | None, int]:
    """Where the trial first parts from the reference, and how many rows agreed in all operators before that step."""
    by_position: dict[int, RowKey] = {}
    for row in lineage(theirs.result.trace, *pair.reference_sample):
        by_position.setdefault(row.position, row)
    # From the first token that differs on, rows are fed other tokens.
    end = comparison.position
    rows = [
        row
        for row in lineage(mine.result.trace, *pair.trial_sample)
        if row.position in by_position and (end is None or row.position < end)
    ]
    parting: _Parting | None = None
    walked = 0
    for row in rows:
        if parting is not None and row.step > parting.row.step:
            break
        other = by_position[row.position]
        site = mine.trails.parts_at(row, theirs.trails, other)
        if site is not None and (parting is None or site < parting.site):
            parting = _Parting(site, row, other)
        walked += site is None
    return parting, walked


def _found(pair: _Pair, mine: _Observed, theirs: _Observed, parting: _Parting, same_bits: bool, walked: int) -> Cause:
    site = mine.trails.sites[parting.site]
    bits = [
        _bits(pair.target, scenario, site, row)
        for scenario, row in ((pair.reference, parting.reference_row), (pair.trial, parting.row))
    ]
    return Cause(
        status="found",
        operator=site.operator,
        layer=site.layer,
        position=parting.row.position,
        step=parting.row.step,
        ulp_histogram=ulp_histogram(*bits),
        same_bits_observed=same_bits,
        rows_before=walked,
        **_sides(mine, theirs, parting.row, parting.reference_row, parting.site),
    )


def _bits(target: ScriptedTarget, scenario: Scenario | Play, site: Site, row: RowKey) -> NDArray[np.integer[Any]]:
    """The second pass: one row of one operator."""
    with target.observe(site.layer, site.operator, (row.request_id, row.position)) as seen:
        target.play(scenario.arrivals, scenario.config)
    return next(o.bits for o in seen if (o.step, o.sample_index) == (row.step, row.sample_index))


def _sides(mine: _Observed, theirs: _Observed, row: RowKey, reference_row: RowKey, site: int | None) -> dict[str, Any]:
    """Plan and schedule on both sides."""
    schedule, plans = {}, []
    for name, side, at in (("reference", theirs, reference_row), ("trial", mine, row)):
        record = side.result.trace[at.step]
        held = [] if site is None else plans_of(record, side.trails.sites, site)
        schedule[name] = {**schedule_of(record, at), "plan": held}
        plans += [plan for plan in held if plan not in plans]
    return {"schedule": schedule, "plan": tuple(plans)}


def _after_the_logits(
    pair: _Pair, mine: _Observed, theirs: _Observed, comparison: Comparison, same_bits: bool, walked: int
) -> Cause:
    """Every operator agrees, and the replies do not: log-softmax where a logprob moves first, else the draw."""
    token, logprob, logits = comparison.first_token, comparison.first_logprob, comparison.first_logits
    first = min(index for index in (token, logprob, logits) if index is not None)
    if first == logits:
        return Cause("unexplained", same_bits_observed=same_bits, rows_before=walked)
    replies = pair.replies(mine.result, theirs.result)
    position = replies[0].prompt_length + first
    row = _drawing_row(mine.result, pair.trial_sample, position)
    reference_row = _drawing_row(theirs.result, pair.reference_sample, position)
    if row is None or reference_row is None:  # One reply ended by itself where the other goes on.
        return Cause("unexplained", position=position, same_bits_observed=same_bits, rows_before=walked)
    return Cause(
        status="found",
        operator="sample" if first == token else "log_softmax",
        layer=OUTSIDE,
        position=position,
        step=row.step,
        same_bits_observed=same_bits,
        rows_before=walked,
        **_sides(mine, theirs, row, reference_row, None),
    )


def _drawing_row(result: PlayResult, sample: Sample, position: int) -> RowKey | None:
    """The row whose logits the token at ``position`` was drawn from."""
    for record in result.trace:
        for group in record.groups:
            end = group.start_position + len(group.token_ids)
            if (group.request_id, group.sample_index, end) == (*sample, position) and group.sampled:
                return RowKey(record.step, position - 1, *sample)
    return None
