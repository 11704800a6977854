"""Every collected case: what is extracted and what the verdict is, strict and lenient."""

import json
from pathlib import Path

import pytest

from detharness.eval.extraction import DEFAULT_THINK_TAGS, RULES_VERSION, judge_reply
from detharness.eval.records import TaskRow
from detharness.records.digests import sha256_value

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


def test_verdicts_change_only_with_the_version_of_the_rules():
    """Over each case as it stands, and as it would be if its end were cut off."""
    verdicts = [
        [found.verdict, found.extracted, sorted(found.flags), found.confidence]
        for case in GRADED + EXACT
        for mode in ("strict", "lenient")
        for output in (case["output"], case["output"][:-1], case["output"] + " So the answer is")
        for found in [judge({**case, "output": output}, mode)]
    ]
    assert (RULES_VERSION, sha256_value(verdicts)) == (
        1,
        "98d0cf93e2b300d1901fdb7dad47538ded948507608ab449be47a3d7ddd5001d",
    ), "raise RULES_VERSION"
