"""Every collected case: what is extracted and what the verdict is, strict and lenient."""

import json
from pathlib import Path

import pytest

from detharness.eval.extraction import DEFAULT_THINK_TAGS, judge_reply
from detharness.eval.records import TaskRow

CASES = [json.loads(line) for line in (Path(__file__).parent / "cases.jsonl").read_text().split("\n") if line]
GRADED = [case for case in CASES if case["bench"] in ("aime", "gpqa")]
EXACT = [case for case in CASES if case.get("kind") == "exact_fallback"]


def row(gold, options=None, **extra):
    return TaskRow("t", 1, "text", "d", "q", str(gold), options, None, (), extra)


def judge(case, mode):
    kind = {"aime": "integer", "gpqa": "letter", "hle": "hle"}[case["bench"]]
    options = tuple(case.get("choices") or ("one", "two", "three", "four")) if kind == "letter" else None
    gold = int(case["gold"]) if kind == "integer" else case["gold"]
    return judge_reply(
        kind,
        row(gold, options, answer_type=case.get("answer_type")),
        case["output"],
        None,
        case.get("finish_reason", "stop"),
        mode=mode,
        think_tags=DEFAULT_THINK_TAGS,
    )


def test_all_cases_are_there():
    assert len(CASES) == 79
    assert len(GRADED) + len(EXACT) + sum(case.get("kind") == "judge_reply" for case in CASES) == 79


@pytest.mark.parametrize("mode", ["strict", "lenient"])
@pytest.mark.parametrize("case", GRADED, ids=lambda case: case["id"])
def test_a_graded_case(case, mode):
    found = judge(case, mode)
    assert found.verdict == case.get(f"{mode}_verdict", case["verdict"])
    assert found.extracted == case.get(f"{mode}_extracted", case["extracted"])


@pytest.mark.parametrize("case", EXACT, ids=lambda case: case["id"])
def test_an_exam_answer_without_a_judge(case):
    found, want = judge(case, "strict"), case["want"]
    assert found.verdict == {"match": "correct", "needs_judge": "needs_judge"}[want["state"]]
    assert found.extracted == want["extracted"]
    assert found.confidence == want.get("confidence")
