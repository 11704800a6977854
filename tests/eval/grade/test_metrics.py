"""Coverage, scores and calibration from hand-written verdicts."""

import pytest

from detharness.eval.grade.metrics import Graded, calibration, coverage_of, coverage_rows, default_ks, scores
from detharness.eval.grade.verdicts import Verdict


def verdict(task_id, sample, name="correct", **fields):
    extracted = {"correct": 33, "incorrect": 12}.get(name)
    plain = {"modality": "text", "extracted": extracted, "flags": (), "output_digest": "d", "attempts": 1}
    return Verdict(task_id=task_id, sample_index=sample, verdict=name, **{**plain, **fields})


def graded(runs, names, samples, modalities=None):
    """``names``: task id -> the verdict of each sample, None where there is no record."""
    tasks = [runs.row(task_id, modality=(modalities or {}).get(task_id, "text")) for task_id in names]
    found = [
        verdict(task_id, sample, name)
        for task_id, listed in names.items()
        for sample, name in enumerate(listed)
        if name is not None
    ]
    return Graded(tasks, samples, {verdict.cell: verdict for verdict in found})


def test_an_incomplete_run_has_bounds_and_no_score(runs):
    """30 tasks of 64 samples, 8 there."""
    names = {f"t{number}": ["correct"] * 3 + ["incorrect"] * 5 for number in range(30)}
    part = graded(runs, names, 64)
    found = scores(part, [1, 8], answers_vote=True)
    assert (found["pass_at_1"], found["coverage_complete"]) == (None, False)
    assert found["bounds"] == {"lower": 3 / 64, "upper": 59 / 64}
    assert coverage_rows(part)["missing"] == 1680
    assert found["stderr_between_tasks"] is found["stderr_sampling"] is None
    assert found["reasons"]["pass_at_1"] == "1680 of 1920 cells have no verdict that counts"
    assert [row["value"] for row in found["pass_at_k"] + found["maj_at_k"]] == [None] * 4


@pytest.mark.parametrize("open_verdict", ["error", "needs_judge", "judge_failed", "unparsed", "over_budget", None])
def test_two_open_cells_leave_no_score(runs, open_verdict):
    names = {"t": ["correct"] * 2 + ["incorrect"] * 4 + [open_verdict] * 2}
    part = graded(runs, names, 8)
    found = scores(part, [1], answers_vote=True)
    assert (found["pass_at_1"], found["coverage_complete"]) == (None, False)
    assert found["bounds"] == {"lower": 2 / 8, "upper": 4 / 8}
    assert coverage_of(part).graded == 6


def test_a_complete_run_has_its_score_and_both_errors(runs):
    names = {"a": ["correct", "correct"], "b": ["incorrect", "correct"], "c": ["no_answer", "ambiguous"]}
    found = scores(graded(runs, names, 2), [1, 2, 5], answers_vote=True)
    assert (found["pass_at_1"], found["coverage_complete"]) == (0.5, True)
    assert found["bounds"] == {"lower": 0.5, "upper": 0.5}
    assert found["stderr_between_tasks"] == pytest.approx((1 / 4 / 3) ** 0.5 * 1.0)
    assert found["stderr_sampling"] == pytest.approx((1 / 4) ** 0.5 / 3)
    assert found["reasons"] == {}
    assert [row["value"] for row in found["pass_at_k"]] == [0.5, pytest.approx(2 / 3), None]
    assert found["pass_at_k"][2]["reason"] == "n<k: 2 samples of a task, 5 wanted"
    # b: one vote each, so half; c: no vote at all.
    assert [row["value"] for row in found["maj_at_k"]] == [0.5, 0.5, None]


def test_one_sample_has_no_sampling_error_and_one_task_no_spread(runs):
    found = scores(graded(runs, {"a": ["correct"]}, 1), default_ks(1), answers_vote=True)
    assert found["pass_at_1"] == 1.0
    assert found["stderr_sampling"] is found["stderr_between_tasks"] is None
    assert set(found["reasons"]) == {"stderr_sampling", "stderr_between_tasks"}


def test_pass_at_10_of_one_sample_is_no_number(runs):
    names = {f"t{number}": ["correct" if number < 50 else "incorrect"] for number in range(164)}
    (row,) = scores(graded(runs, names, 1), [10], answers_vote=True)["pass_at_k"]
    assert row["value"] is None
    assert row["reason"].startswith("n<k")


def test_votes_are_grouped_by_the_answer_alone(runs):
    part = graded(runs, {"t": ["incorrect"] * 2 + ["correct"] * 3 + ["no_answer"] * 4}, 9)
    assert scores(part, [9], answers_vote=True)["maj_at_k"][0]["value"] == 1.0
    assert "written differently" in scores(part, [9], answers_vote=False)["maj_at_k"][0]["reason"]


def test_votes_that_take_too_long_to_count_are_no_number(runs):
    part = graded(runs, {"t": ["incorrect"] * 400 + ["correct"] * 600}, 1000)
    few, many, all_of_them = scores(part, [64, 65, 1000], answers_vote=True)["maj_at_k"]
    assert 0.9 < few["value"] < 1.0
    assert (many["value"], many["reason"].split(",")[0]) == (
        None,
        "subsets of more than 64 votes are too many to count",
    )
    assert all_of_them["value"] == 1.0


def test_each_modality_has_a_flag_and_a_score_of_its_own(runs):
    names = {"a": ["correct"], "b": ["incorrect"], "c": [None]}
    part = graded(runs, names, 1, {"c": "image"})
    rows = coverage_rows(part)["by_modality"]
    assert (rows["text"]["coverage_complete"], rows["text"]["pass_at_1"]) == (True, 0.5)
    assert (rows["image"]["coverage_complete"], rows["image"]["pass_at_1"], rows["image"]["missing"]) == (
        False,
        None,
        1,
    )
    assert scores(part, [1], answers_vote=True)["pass_at_1"] is None
    text_only = coverage_rows(graded(runs, {"a": ["correct"]}, 1))["by_modality"]["image"]
    assert (text_only["expected"], text_only["coverage_complete"], text_only["pass_at_1"]) == (0, None, None)


def test_the_default_ks_double_up_to_the_samples():
    assert [default_ks(samples) for samples in (1, 2, 8, 12)] == [[1], [1, 2], [1, 2, 4, 8], [1, 2, 4, 8, 12]]


@pytest.mark.parametrize(
    ("count", "error", "official"), [(50, None, None), (150, 1.0, None), (2500, 1.0, pytest.approx(0.98, abs=0.0005))]
)
def test_all_wrong_at_full_confidence(runs, count, error, official):
    tasks = [runs.row(f"t{number}") for number in range(count)]
    found = [verdict(row.task_id, 0, "incorrect", confidence=100) for row in tasks]
    made = calibration(Graded(tasks, 1, {verdict.cell: verdict for verdict in found}))
    assert (made["n"], made["rms_error"], made["official_compatible"]) == (count, error, official)
    assert (made["reason"] is None) == (error is not None)
    assert (made["official_reason"] is None) == (official is not None)


def test_what_was_not_graded_or_states_no_confidence_is_not_in_the_calibration(runs):
    tasks = [runs.row(f"t{number}") for number in range(130)]
    names = ["correct"] * 100 + ["unparsed"] * 10 + ["judge_failed"] * 10 + ["incorrect"] * 10
    found = [
        verdict(row.task_id, 0, name, confidence=100 if number < 120 else None, judge_confidence=100)
        for number, (row, name) in enumerate(zip(tasks, names, strict=True))
    ]
    made = calibration(Graded(tasks, 1, {verdict.cell: verdict for verdict in found}))
    assert (made["n"], made["rms_error"]) == (100, 0.0)
