import json
from pathlib import Path

import pytest

from detharness.errors import UsageError
from detharness.eval.grade.judge_prompt import OWN_TEMPLATE, JudgeReply, load_template, parse_judge_reply


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("extracted_final_answer: 17\nreasoning: same value\ncorrect: yes\nconfidence: 85", (True, "17", 85)),
        ("**correct**: yes\n**confidence**: 70%", (True, None, 70)),
        ("**Correct:** **No**\n- **Confidence:** 70 %", (False, None, 70)),
        ("correct: no", (False, None, 100)),
        ("Correct: No.\n", (False, None, 100)),
        ("correct\uff1a yes", (True, None, 100)),
        ("correct: yes\nreasoning: on second thoughts\ncorrect: no", (False, None, 100)),
        ("extracted_final_answer: 5; reasoning: fine; correct: yes; confidence: 90%", (True, "5", 90)),
        ("3. correct: yes\n4. confidence: 12.5%", (True, None, 12)),
        ('{"extracted_final_answer": "x", "reasoning": "r", "correct": "yes", "confidence": 40}', (True, "x", 40)),
        ('It is.\n```json\n{"correct": "no", "confidence": "30%"}\n```', (False, None, 30)),
        ('{\n"extracted_final_answer": "5",\n"correct": "yes",\n"confidence": 8,}', (True, "5", 8)),
    ],
)
def test_a_clear_reply_is_read(text, expected):
    reply = parse_judge_reply(text)
    extracted = None if reply.extracted is None else reply.extracted.strip('",')
    assert (reply.status, (reply.correct, extracted, reply.confidence)) == ("parsed", expected)


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "INCORRECT",
        "incorrect: no",
        "The response is in-correct: no",
        "Yes, the answer is incorrect.",
        "not correct: yes",
        "correct: mostly yes",
        "correct: yes or no",
        "correct: yes\ncorrect: unsure",
        "correct:\nyes",
        "correct yes",
        '{"correct": true}',
        '{"correct": null}',
        '["correct"]',
        "{" * 100_000,
    ],
)
def test_anything_else_is_unparsed_and_never_a_no(text):
    assert parse_judge_reply(text) == JudgeReply("unparsed")


@pytest.mark.parametrize(
    ("value", "confidence", "flags"),
    [
        ("150", None, ("confidence_out_of_range",)),
        ("high", None, ("confidence_unreadable",)),
        ("-5", None, ("confidence_unreadable",)),
        ("0%", 0, ()),
        ("100", 100, ()),
    ],
)
def test_a_confidence_that_is_none_leaves_the_verdict(value, confidence, flags):
    reply = parse_judge_reply(f"correct: yes\nconfidence: {value}")
    assert (reply.correct, reply.confidence, reply.flags) == (True, confidence, flags)


def test_an_error_message_in_place_of_an_opinion_is_a_failure():
    assert parse_judge_reply("[ERROR] judge at 127.0.0.1:8000 returned HTTP 500").status == "failed"


def test_braces_in_what_is_filled_in_are_left_alone():
    prompt = OWN_TEMPLATE.fill(question="{response}", response=r"\frac{1}{2} {correct_answer}", correct_answer="G")
    assert "QUESTION\n{response}\nEND" in prompt
    assert "\\frac{1}{2} {correct_answer}\nEND" in prompt
    assert prompt.count("\nG\n") == 1


@pytest.mark.parametrize("unit", ["\n", " ", ", ", "correct", "correct: ", "```json\n{"])
def test_a_long_reply_is_read_in_linear_time(unit):
    assert parse_judge_reply(unit * 200_000 + "\ncorrect: no").status in ("parsed", "unparsed")


def test_a_template_of_the_user_has_its_own_digest_and_must_hold_every_place(tmp_path):
    path = tmp_path / "template.txt"
    path.write_text("{question} {response} {correct_answer} {other}")
    template = load_template(path)
    assert template.fill(question="q", response="r", correct_answer="a") == "q r a {other}"
    assert template.digest != OWN_TEMPLATE.digest
    path.write_text("{question} {response}")
    with pytest.raises(UsageError, match=r"no place \{correct_answer\}"):
        load_template(path)
    with pytest.raises(UsageError, match="cannot read the judge template"):
        load_template(tmp_path / "absent")


def test_half_a_character_in_a_reply_does_not_reach_a_verdict():
    reply = parse_judge_reply(r'{"correct": "yes", "extracted_final_answer": "4\ud8002"}')
    assert (reply.correct, reply.extracted) == (True, "4?2")


CASES = Path(__file__).parent.parent / "extraction" / "cases.jsonl"


def test_the_collected_cases():
    cases = [case for line in CASES.read_text().split("\n") if line and (case := json.loads(line))]
    replies = [case for case in cases if case.get("kind") == "judge_reply"]
    assert len(replies) >= 8
    for case in replies:
        reply, want = parse_judge_reply(case["output"]), case["want"]
        assert reply.correct is want["correct"], case["id"]
        assert (reply.status == "parsed") is want["parsed"], case["id"]
        assert reply.confidence == want.get("confidence"), case["id"]
        assert want.get("flag") is None or reply.flags == (want["flag"],), case["id"]
        assert (reply.status == "failed") is (want.get("status") == "judge_failed"), case["id"]
