"""A row per divergence: where it lies, how narrow the choice there was among all of the run's, what each side says."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detharness.probes.contexts import parting, shared_length
from detharness.probes.divergence_rows import Margins, divergence_rows
from detharness.probes.runner import run
from detharness.records.jsonl import read_jsonl


def play(plan):
    return run(plan, lambda total: nullcontext(lambda note: None), lambda: None)


def trial(**changes):
    comparison = {
        "first_token": 2,
        "position": 12,
        "margin": 0.5,
        "median_logprob_gap": 0.01,
        "max_logprob_gap": 0.02,
        "divergence_class": "near_tie",
        **changes.pop("comparison", {}),
    }
    return {
        "kind": "trial",
        "prompt": "p",
        "axis": "slot",
        "level": "copy",
        "offset": 0,
        "exercised": {"steps": 1},
        "confounded": False,
        "comparison": comparison,
        "margins": [4.0, 3.0, 0.5],
        "context": {"common": "a", "reference": "b", "other": "c"},
        **changes,
    }


SOLO = {"kind": "solo", "prompt": "p", "margins": [4.0, 3.0, 0.5, 2.0, None]}


def test_a_margin_is_ranked_among_all_that_are_known():
    margins = Margins([[3.0, None, 1.0], [2.0, float("inf")], []])
    assert margins.rank(1.0) == [1, 3]
    assert margins.rank(2.5) == [3, 3]
    assert margins.median == 2.0
    assert Margins([]).median is None


@given(st.lists(st.floats(0, 100), min_size=1))
def test_the_rank_is_one_more_than_the_number_of_smaller_margins(values):
    for value in values:
        assert Margins([values]).rank(value) == [1 + sum(other < value for other in values), len(values)]


def test_a_row_gives_place_margin_rank_and_drift():
    (row,) = divergence_rows([SOLO, trial(), {"kind": "arm_complete"}])
    assert row == {
        "prompt": "p",
        "axis": "slot",
        "level": "copy",
        "prompt_tokens": 10,
        "index": 2,
        "position": 12,
        "method": "token ids",
        "interval": [2, 2],
        "byte_offset": None,
        "margin": 0.5,
        "margin_rank": [1, 7],
        "median_margin": 3.0,
        "drift_median": 0.01,
        "drift_max": 0.02,
        "divergence_class": "near_tie",
        "forced": None,
        "context": {"common": "a", "reference": "b", "other": "c"},
        "count": 1,
    }


def test_equal_divergences_are_one_row_with_their_count():
    other = trial(context={"common": "a", "reference": "b", "other": "d"})
    rows = divergence_rows([SOLO, trial(), other, trial()])
    assert [(row["context"]["other"], row["count"]) for row in rows] == [("c", 2), ("d", 1)]


def test_an_index_counts_from_the_solo_reply_where_the_prompt_held_its_head():
    (row,) = divergence_rows([SOLO, trial(offset=4, comparison={"position": 16})])
    assert (row["index"], row["position"], row["prompt_tokens"]) == (6, 16, 10)


@pytest.mark.parametrize("changes", [{"confounded": True}, {"exercised": {}}])
def test_a_trial_that_counts_for_no_axis_blames_none(changes):
    (row,) = divergence_rows([SOLO, trial(**changes)])
    assert (row["axis"], row["level"]) == (None, "copy")


def test_there_is_no_drift_before_the_first_token():
    (row,) = divergence_rows([SOLO, trial(comparison={"first_token": 0, "max_logprob_gap": 0.0, "position": 10})])
    assert row["drift_max"] is None


def test_a_run_whose_tokens_held_has_no_rows():
    assert divergence_rows([SOLO, trial(comparison={"first_token": None})]) == []


def test_the_runner_writes_what_the_rows_need(mini_target, make_plan):
    outcome = play(make_plan(mini_target(fault="recompute kernel differs"), kernels="invariant", axes="preemption"))
    arm = outcome.report["arms"][0]
    records = [row.value for row in read_jsonl(outcome.folder / "trials.jsonl")]
    replies = [row for row in records if row["kind"] in ("solo", "trial")]
    assert all(len(row["margins"]) == len(row["token_ids"]) for row in replies)
    parted = [row for row in replies if row["kind"] == "trial" and row["comparison"]["first_token"] is not None]
    assert sum(row["count"] for row in arm["divergences"]) == len(parted) > 0
    for row in arm["divergences"]:
        rank, of = row["margin_rank"]
        assert 1 <= rank <= of == sum(len(reply["margins"]) for reply in replies)
        assert row["position"] == row["prompt_tokens"] + row["index"]
        context = row["context"]
        assert context["reference"][:1] != context["other"][:1]
        solo = next(reply["text"] for reply in replies if reply["kind"] == "solo" and reply["prompt"] == row["prompt"])
        assert context["common"] + context["reference"] in solo


def test_a_context_holds_the_common_end_and_both_beginnings():
    assert parting("one two three", "one two four") == {"common": "one two ", "reference": "three", "other": "four"}
    assert parting("same", "same") == {"common": "same", "reference": "", "other": ""}
    long = parting("x" * 500 + "a" * 500, "x" * 500 + "b" * 500)
    assert {name: len(text) for name, text in long.items()} == {"common": 160, "reference": 80, "other": 80}


@given(st.text(), st.text(), st.text())
def test_the_shared_length_is_the_longest_common_beginning(head, left, right):
    length = shared_length(head + left, head + right)
    assert length >= len(head)
    assert (head + left)[:length] == (head + right)[:length]
    assert (head + left)[length : length + 1] != (head + right)[length : length + 1] or head + left == head + right
