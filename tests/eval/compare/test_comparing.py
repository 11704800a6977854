"""Two runs: every level, every cause, and parts that add up to the difference exactly."""

import dataclasses
import json
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detharness.errors import UsageError
from detharness.eval.compare.levels import CAUSES, cause_of, kind_of
from detharness.eval.compare.report import Regraded, compare_runs
from detharness.eval.compare.score import pass_at_1, score_of
from detharness.eval.compare.sides import Judged, Side
from detharness.eval.compare.wording import part_rows, sentences
from detharness.eval.runs import Place
from detharness.records.canonical import canonical_bytes


def cells(runs, rows, change=None, samples=2, **fields):
    """An answer for each cell; ``change`` gives cells other fields."""
    change = change or {}
    return [
        runs.answer(row, sample, **{"text": "it is 33", **fields, **change.get((row.task_id, sample), {})})
        for row in rows
        for sample in range(samples)
    ]


def test_a_run_against_itself_in_another_order(runs, rows, pairs):
    answers = cells(runs, rows, token_ids=(1, 2), logprob_bits_digest="b" * 64)
    found = pairs.compare(pairs.graded(rows, answers), pairs.graded(rows, answers[::-1]))
    assert found.same
    assert found.report["verdict"] == "same"
    assert found.report["differing_cells"] == []
    assert {pair.kind for pair in found.pairs.values()} == {"bits"}
    assert found.report["runs"]["a"]["generation_root"] == found.report["runs"]["b"]["generation_root"]
    assert found.report["score"]["difference"] == {"exact": "0", "value": 0.0}
    assert found.report["score"]["test"]["p_value"] == 1.0
    assert found.report["null_control"]["holds"]


def test_equal_scores_do_not_hide_moved_outputs(runs, rows, pairs):
    # M27: one cell turns wrong, another right.
    a = pairs.graded(rows, cells(runs, rows, {("t0", 0): {"text": "it is 12"}}))
    b = pairs.graded(rows, cells(runs, rows, {("t1", 1): {"text": "it is 12"}}))
    found = pairs.compare(a, b)
    assert not found.same
    assert found.report["verdict"] == "score_equal_outputs_moved"
    assert sentences(found.report)[0].startswith("Equal scores, moved outputs")
    moved = found.report["differing_cells"]
    assert [(row["task_id"], row["sample_index"], row["cause"]) for row in moved] == [
        ("t0", 0, "output"),
        ("t1", 1, "output"),
    ]
    assert moved[0]["first_difference"]["index"] == len("it is ")
    assert moved[0]["first_difference"]["text"] == ["it is 12", "it is 33"]
    part = found.report["score"]["parts"]["output"]
    assert (part["gained"], part["lost"], part["difference"]["exact"]) == (1, 1, "0")


def test_moved_logprob_bits_are_said_though_no_token_moved(runs, rows, pairs):
    a = pairs.graded(rows, cells(runs, rows, token_ids=(1,), logprob_bits_digest="a" * 64))
    b = pairs.graded(
        rows,
        cells(runs, rows, {("t2", 0): {"logprob_bits_digest": "b" * 64}}, token_ids=(1,), logprob_bits_digest="a" * 64),
    )
    found = pairs.compare(a, b)
    assert found.same
    assert found.report["verdict"] == "logprobs_moved"
    assert "logprob bits moved" in sentences(found.report)[0]
    assert found.report["levels"]["logprob_bits"] == {"same": 5, "different": 1, "unknown": 0}
    assert found.report["levels"]["tokens"] == {"same": 6, "different": 0, "unknown": 0}
    assert [row["kind"] for row in found.report["differing_cells"]] == ["logprobs"]


def test_both_readings_of_same_are_shown(runs, rows, pairs):
    a = pairs.graded(rows, cells(runs, rows))
    b = pairs.graded(rows, cells(runs, rows, {("t0", 1): {"text": "so it is 33"}}))
    found = pairs.compare(a, b)
    assert found.report["readings"] == {"raw_text": "moved", "extracted_answer": "same"}
    assert "By raw text 5 of 6 cells are the same; by extracted answer 6 are." in sentences(found.report)
    assert [row["kind"] for row in found.report["differing_cells"]] == ["answer"]


REQUESTS = {
    "prompt": {"template_digest": "u" * 64},
    "target": {"target_digest": "e" * 64},
    "parameters": {"sampling": {"temperature": 0.7, "max_tokens": 64}},
}


def side(*, row="r", request=None, text="x", tokens=None, bits=None, verdict="correct", extracted="33"):
    base = {"task_version": "1", "template_digest": "t", "messages_digest": "m", "sampling": {}, "seed": 1}
    return Side(
        place=Place("f", 1, 0, 0),
        row_digest=row,
        request={**base, "target_digest": "d", **(request or {})},
        text=text,
        tokens=tokens,
        logprob_bits=bits,
        judged=Judged(verdict, extracted),
    )


@pytest.mark.parametrize(
    ("other", "cause"),
    [
        (side(), None),
        (side(verdict="incorrect"), "grader"),
        (side(extracted="34"), "grader"),
        (side(text="y"), "output"),
        (side(text="y", verdict="incorrect"), "output"),
        (side(request={"seed": 2}, text="y"), "parameters"),
        (side(request={"new_field": 2}), "parameters"),
        (side(request={"seed": 2, "target_digest": "e"}, text="y"), "target"),
        (side(request={"messages_digest": "n", "target_digest": "e"}), "prompt"),
        (side(request={"task_version": "2"}), "prompt"),
        (side(row="s", request={"messages_digest": "n", "seed": 2}, text="y", verdict="incorrect"), "data_row"),
    ],
)
def test_a_cell_belongs_to_the_first_cause_that_applies(other, cause):
    assert cause_of(side(), other) == cause_of(other, side()) == cause


@pytest.mark.parametrize(
    ("a", "b", "kind"),
    [
        (side(tokens="1", bits="1"), side(tokens="1", bits="1"), "bits"),
        (side(tokens="1", bits="1"), side(tokens="1", bits="2"), "logprobs"),
        (side(tokens="1", bits="1"), side(tokens="1"), "same"),
        (side(tokens="1"), side(), "same"),
        (side(tokens="1"), side(tokens="2"), "tokens"),
        (side(), side(text="y"), "answer"),
        (side(verdict="incorrect"), side(text="y", verdict="incorrect", extracted="4"), "verdict"),
        (side(verdict="no_answer", extracted=None), side(text="y", verdict="no_answer", extracted=None), "answer"),
        (side(verdict="needs_judge", extracted=None), side(text="y", verdict="needs_judge", extracted=None), "verdict"),
        (side(), side(verdict="incorrect"), "flipped"),
    ],
)
def test_the_strictest_word_for_a_pair(a, b, kind):
    assert kind_of(a, b) == kind_of(b, a) == kind


@pytest.mark.parametrize("cause", ["prompt", "target", "parameters"])
def test_a_changed_request_is_named_as_the_cause(runs, rows, pairs, cause):
    changed = [
        dataclasses.replace(answer, request={**answer.request, **REQUESTS[cause]})
        for answer in cells(runs, rows, {("t0", 0): {"text": "it is 12"}})
    ]
    found = pairs.compare(pairs.graded(rows, cells(runs, rows)), pairs.graded(rows, changed))
    assert found.report["causes"] == {cause: 6}
    assert found.report["score"]["parts"][cause]["difference"]["exact"] == "-1/6"
    assert found.report["verdict"] == "score_moved"


def test_another_grader_is_a_cause_of_its_own_and_not_comparable(runs, rows, pairs):
    answers = cells(runs, rows)

    def harsh(generation):
        return Judged("incorrect", None) if generation.cell == ("t1", 0) else Judged("correct", "33")

    found = pairs.compare(pairs.graded(rows, answers), pairs.graded(rows, answers, rule=harsh, fingerprint="g"))
    assert found.same
    assert found.report["verdict"] == "same"
    assert found.report["score"]["parts"]["grader"]["difference"]["exact"] == "-1/6"
    assert not found.report["graders_comparable"]
    assert any("not comparable" in sentence for sentence in sentences(found.report))


def test_an_incomplete_run_is_compared_over_the_cells_that_both_have(runs, rows, pairs):
    answers = cells(runs, rows, {("t0", 0): {"text": "no 1"}})
    found = pairs.compare(
        pairs.graded(rows, answers), pairs.graded(rows, [answers[1], answers[2], runs.failure(rows[2])])
    )
    score = found.report["score"]
    assert score["basis"] == "common"
    assert score["cells"] == 2
    assert score["pass_at_1"]["a"]["exact"] == score["pass_at_1"]["b"]["exact"] == "1"
    assert score["parts"]["coverage"]["difference"]["exact"] == "0"
    assert found.report["verdict"] == "cells_differ"
    assert not found.same


def test_complete_runs_of_different_size_leave_a_part_to_coverage(runs, rows, pairs):
    a = pairs.graded(rows, cells(runs, rows, {("t2", 0): {"text": "no 1"}}))
    b = pairs.graded(rows[:2], cells(runs, rows[:2], {("t0", 0): {"text": "no 1"}}))
    score = pairs.compare(a, b).score
    assert score.basis == "complete"
    assert (score.a, score.b) == (Fraction(5, 6), Fraction(3, 4))
    assert score.parts["output"].difference == Fraction(-1, 4)
    assert score.parts["coverage"].difference == Fraction(1, 6)
    assert sum(part.difference for part in score.parts.values()) == score.difference


VERDICT = st.sampled_from(["correct", "incorrect", "no_answer", "needs_judge"])
SIDE = st.builds(
    side,
    row=st.sampled_from("rs"),
    request=st.sampled_from([{}, {"seed": 2}, {"target_digest": "e"}, {"messages_digest": "n"}]),
    text=st.sampled_from("xy"),
    verdict=VERDICT,
)
SIDES = st.dictionaries(st.tuples(st.sampled_from("abc"), st.integers(0, 2)), SIDE)


@settings(max_examples=200)
@given(SIDES, SIDES, st.booleans())
def test_the_parts_add_up_to_the_difference_exactly(a, b, complete):
    score = score_of(a, b, complete=complete)
    graded = [{cell for cell, one in sides.items() if one.judged.correct is not None} for sides in (a, b)]
    if not graded[0] & graded[1]:
        assert score is None
        return
    assert set(score.parts) == {*CAUSES, "coverage"}
    assert sum(part.difference for part in score.parts.values()) == score.difference
    flips = sum(a[cell].judged.correct != b[cell].judged.correct for cell in graded[0] & graded[1])
    assert sum(part.gained + part.lost for part in score.parts.values()) == flips
    if not complete:
        assert score.parts["coverage"].difference == 0


def test_pass_at_1_weighs_tasks_alike():
    right = {("a", 0): True, ("a", 1): False, ("a", 2): False, ("b", 0): True}
    assert pass_at_1(right, right) == Fraction(2, 3)
    with pytest.raises(ValueError, match="no cells"):
        pass_at_1(right, [])


def test_noise_is_named_as_an_explanation_only_where_it_is_one(runs, pairs):
    rows = [runs.row(f"t{number:02}", line=number + 1) for number in range(12)]
    right = cells(runs, rows, samples=1)
    few = cells(runs, rows, {("t00", 0): {"text": "no 1"}}, samples=1)
    wrong = cells(runs, rows, samples=1, text="no 1")
    base = pairs.graded(rows, right, samples=1)
    one, all_of_them = (pairs.compare(base, pairs.graded(rows, side, samples=1)) for side in (few, wrong))
    assert one.report["score"]["test"]["p_value"] == 1.0
    assert one.report["score"]["test"]["chance_suffices"]
    assert all_of_them.report["score"]["test"]["p_value"] == 2 / 2**12
    assert any("does not explain" in sentence for sentence in sentences(all_of_them.report))
    assert any("nondeterminism" in sentence for sentence in sentences(one.report))
    effect = one.report["score"]["smallest_detectable_effect"]
    assert effect["one_cell"]["exact"] == "1/12"
    assert effect["independent_runs"] is None  # One sample a task says nothing about sampling.
    # One difference of -1 among twelve: standard deviation sqrt(1/12), standard error 1/12; 2.801585 of them.
    assert effect["paired"] == pytest.approx(2.801585 / 12, rel=1e-6)


def test_the_null_control_fails_when_a_regrade_gives_other_verdicts(runs, rows, pairs):
    a = pairs.graded(rows, cells(runs, rows))
    b = pairs.graded(rows, cells(runs, rows))
    regraded = {cell: one.judged for cell, one in a.sides.cells.items()} | {("t0", 0): Judged("incorrect", "4")}
    control = pairs.compare(a, b, Regraded(regraded, None)).report["null_control"]
    assert control == {
        "holds": False,
        "reason": None,
        "cells": 6,
        "verdicts_moved": [["t0", 0]],
        "difference": pytest.approx(-1 / 6),
    }


def test_a_null_control_that_cannot_be_made_is_said(runs, rows, pairs):
    a = pairs.graded(rows, cells(runs, rows))
    found = pairs.compare(a, pairs.graded(rows, cells(runs, rows)), Regraded(None, "no replies are there"))
    assert found.report["null_control"]["holds"] is None
    assert "Null control not made: no replies are there." in sentences(found.report)


def test_rows_per_step_show_whether_batching_was_exercised(runs, rows, pairs):
    def batched(most):
        batch = {"min": 1, "max": most, "mean": (1 + most) / 2, "first_step": 0, "last_step": 5}
        return [dataclasses.replace(answer, batch=batch) for answer in cells(runs, rows)]

    alone = pairs.graded(rows, batched(1))
    found = pairs.compare(alone, pairs.graded(rows, batched(4)))
    assert found.report["runs"]["b"]["rows_per_step"] == {"min": 1, "max": 4, "mean": 2.5}
    assert "Rows per step: A 1 to 1, mean 1.00; B 1 to 4, mean 2.50." in sentences(found.report)
    assert "was not tested" in sentences(pairs.compare(alone, pairs.graded(rows, batched(1))).report)[-1]


def test_the_report_is_plain_and_the_same_every_time(runs, rows, pairs):
    a = cells(runs, rows, {("t0", 0): {"text": None}})
    first = pairs.compare(pairs.graded(rows, a), pairs.graded(rows, cells(runs, rows))).report
    again = pairs.compare(pairs.graded(rows, a[::-1]), pairs.graded(rows, cells(runs, rows)[::-1])).report
    assert canonical_bytes(first) == canonical_bytes(again)
    assert json.loads(canonical_bytes(first)) == first
    assert [row[0] for row in part_rows(first["score"])][-1].startswith("difference")


def test_runs_that_cannot_be_compared_are_refused(runs, rows, pairs):
    a = pairs.graded(rows, cells(runs, rows))
    other = pairs.graded([runs.row("else")], cells(runs, [runs.row("else")]))
    with pytest.raises(UsageError, match="no answered cell in common"):
        pairs.compare(a, other)
    task = dataclasses.replace(
        other, sides=dataclasses.replace(other.sides, run=dataclasses.replace(other.sides.run, task="hle"))
    )
    with pytest.raises(UsageError, match=r"'aime2026'.*'hle'"):
        compare_runs(a, task, Regraded({}, None))
