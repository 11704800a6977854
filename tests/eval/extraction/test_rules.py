"""What counts as an answer, case by case, and that no text makes the rules raise, crawl or evaluate."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detharness.eval.extraction import DEFAULT_THINK_TAGS, final_channel, judge_reply, rules_fingerprint
from detharness.eval.records import TaskRow

OPTIONS = ("one", "two", "three", "four")


def row(gold="33", options=None, **extra):
    return TaskRow("t", 1, "text", "d", "q", gold, options, None, (), extra)


def integer(text, gold="33", mode="strict", reasoning=None, finish="stop", tags=DEFAULT_THINK_TAGS):
    return judge_reply("integer", row(gold), text, reasoning, finish, mode=mode, think_tags=tags)


def letter(text, gold="C", mode="strict", options=OPTIONS):
    return judge_reply("letter", row(gold, options), text, None, "stop", mode=mode, think_tags=DEFAULT_THINK_TAGS)


@pytest.mark.parametrize(
    "text",
    [
        r"\boxed{\text{33}}",
        r"\boxed{\mathbf{033}}",
        r"\boxed {33}",
        r"\boxed 33",
        r"\boxed{\{33\}}",
        r"\boxed{\approx 33}",
        r"\boxed{33^\circ}",
        r"\boxed{33^{\circ}}",
        r"\boxed{x \equiv 33 \pmod{1000}}",
        "\\boxed{\uff13\uff13}",
        r"\\boxed{\\text{33}}",
        "**Final Answer:** 33",
        "**Final Answer**\n\n33",
        "Final answer: the answer is 33",
        "ANSWER: $33$.",
        "The answer is 33 (mod 1000).",
        "The answer is 33, since it must be odd.",
        "<think>12</think>The answer is 33.",
        "[THINK]\\boxed{12}[/THINK]\\boxed{33}",
        "\u25c1think\u25b7\\boxed{12}\u25c1/think\u25b7\\boxed{33}",
        "<|channel|>analysis<|message|>\\boxed{12}<|end|><|start|>assistant<|channel|>final<|message|>\\boxed{33}<|return|>",
        "It closes with </think> as told: \\boxed{33}",
    ],
)
def test_33_in_many_spellings(text):
    assert (integer(text).verdict, integer(text).extracted) == ("correct", 33)


@pytest.mark.parametrize(
    ("text", "verdict", "extracted"),
    [
        (r"\boxed{1{,}000}", "incorrect", 1000),
        (r"\boxed{1\,000}", "incorrect", 1000),
        (r"\boxed{" + "9" * 5000 + "}", "incorrect", "9" * 40),
        (r"\boxed{33x}", "incorrect", None),
        ("\\boxed{3\u00b3}", "incorrect", None),
        (r"\boxed{\pm 33}", "ambiguous", None),
        (r"\boxed{x=33, y=12}", "ambiguous", None),
        ("The answer is 33 or 12.", "ambiguous", None),
        ("The answer is 33^2.", "no_answer", None),
        ("We find 33.", "no_answer", None),
        ("", "no_answer", None),
        (None, "no_answer", None),
        (r"\boxed{\frac{66}{2}}", "no_answer", None),
        (r"\boxed{\frac{1}{3}}", "incorrect", None),
        (r"\boxed{2^{5}+1}", "incorrect", None),
        ("<think>\\boxed{33}", "no_answer", None),
    ],
)
def test_what_is_not_33(text, verdict, extracted):
    found = integer(text)
    assert (found.verdict, found.extracted) == (verdict, extracted)


def test_zero_is_an_answer():
    assert integer(r"\boxed{000}", gold="0").verdict == "correct"


def test_a_separate_reasoning_field_is_never_searched():
    found = integer("", reasoning=r"\boxed{33}")
    assert found.verdict == "no_answer"
    assert found.flags == {"empty"}


def test_reasoning_that_never_ended_is_no_answer_and_is_flagged():
    assert integer("<think>so \\boxed{33}", finish="length").flags == {"unclosed_reasoning", "answer_in_reasoning"}
    assert integer("<think>so 33", finish="length").flags == {"unclosed_reasoning"}
    assert integer("<think>a</think><think>\\boxed{33}").verdict == "no_answer"


def test_an_answer_before_the_last_closing_tag_alone_is_flagged_not_guessed():
    assert integer(r"\boxed{33} </think> done").flags == {"tag_ambiguous"}
    assert integer(r"\boxed{33} </think> ").flags == {"tag_ambiguous", "empty"}
    assert integer(r"nothing </think> done").flags == frozenset()


def test_think_tags_are_the_callers_choice():
    text = "<plan>\\boxed{12}</plan> I give up"
    assert integer(text).extracted == 12
    assert integer(text, tags=("plan",)).verdict == "no_answer"
    assert rules_fingerprint("strict", ("plan",)) != rules_fingerprint("strict", ("think",))
    assert rules_fingerprint("strict", ("plan",)) != rules_fingerprint("lenient", ("plan",))


def test_lenient_rules_say_that_they_were_used():
    assert integer(r"\boxed{5+28}", mode="lenient").flags == {"evaluated", "fallback"}
    assert integer(r"\boxed{\frac{66}{2}}", mode="lenient").extracted == 33
    assert integer("We find 33.", mode="lenient").flags == {"fallback"}
    assert letter("Answer: three", mode="lenient").flags == {"fallback"}


@pytest.mark.parametrize(
    "text",
    [
        "Answer: (C)",
        "answer: **c**",
        "Answer\uff1a \uff23",
        "The correct answer is (C).",
        "The correct option is C because the others fail.",
        "**C**",
        "(c)",
        "Answer: C) three",
        "Answer: option C",
        "Answer: $C$",
        '```json\n{"answer": "C"}\n```',
        "Answer: C. Option A is wrong.",
    ],
)
def test_c_in_many_spellings(text):
    assert (letter(text).verdict, letter(text).extracted) == ("correct", "C")


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("Answer: A or C", "ambiguous"),
        ("Answer: B, C", "ambiguous"),
        ("Answer: a matter of taste", "no_answer"),
        ("ANSWER: [LETTER]", "no_answer"),
        ("ANSWER: $LETTER", "no_answer"),
        ("Answer: C-14 dating", "no_answer"),
        ("I think C is likely, but A could be.", "no_answer"),
        ("Answer: C\nWait.\nAnswer: B", "incorrect"),
    ],
)
def test_what_is_not_c(text, verdict):
    assert letter(text).verdict == verdict


def test_a_letter_beyond_the_options_is_none():
    assert letter("Answer: E").verdict == "no_answer"
    assert letter("Answer: E", gold="E", options=("a", "b", "c", "d", "e")).verdict == "correct"


def exam(text, gold, kind="exactMatch"):
    return judge_reply(
        "hle", row(gold, answer_type=kind), text, None, "stop", mode="strict", think_tags=DEFAULT_THINK_TAGS
    )


@pytest.mark.parametrize(
    ("text", "gold", "verdict"),
    [
        ("Answer: 42.0", "42", "correct"),
        ("Answer: 1,000", "1000", "correct"),
        ("Answer: $x^2$", "x^2", "correct"),
        ("Answer: CO", "Co", "needs_judge"),
        ("A long essay.", "42", "needs_judge"),
        ("\\boxed{42}", "42", "correct"),
        (" ", "42", "no_answer"),
    ],
)
def test_an_exam_answer_matches_exactly_or_needs_a_judge(text, gold, verdict):
    assert exam(text, gold).verdict == verdict


@pytest.mark.parametrize(
    ("text", "verdict"), [("Answer: K", "correct"), ("Answer: B", "incorrect"), ("?", "no_answer")]
)
def test_a_letter_of_the_exam_has_a_full_verdict(text, verdict):
    assert exam(text, "K", "multipleChoice").verdict == verdict


@pytest.mark.parametrize(
    ("text", "percent"),
    [
        ("Confidence: 90%", 90),
        ("**Confidence:** 7", 7),
        ("Confidence: 150", None),
        ("Confidence: 0.9", None),
        ("", None),
    ],
)
def test_confidence_is_read_from_the_replys_own_line(text, percent):
    assert exam(f"Answer: 1\n{text}", "1").confidence == percent


HOSTILE = [
    "\\boxed{",
    "\\boxed{}",
    "{",
    "}",
    "<think>",
    "</think>",
    "answer:",
    "answer: ",
    "the final answer is ",
    "answer:\n",
    "answer: a,",
    " ",
    "\n",
    "*",
    "\\",
    "1,",
    "9",
    "=",
    "\\text{",
    "<answer>",
    '"answer": "',
    "confidence: ",
    "\u0661",
]


@pytest.mark.parametrize("unit", HOSTILE)
@pytest.mark.parametrize("kind", ["integer", "letter", "hle"])
def test_a_megabyte_of_anything_is_judged_in_linear_time(unit, kind):
    text = unit * (1_000_000 // len(unit))
    started = time.process_time()
    for mode in ("strict", "lenient"):
        judge_reply(
            kind,
            row(options=OPTIONS if kind == "letter" else None),
            text,
            None,
            "length",
            mode=mode,
            think_tags=DEFAULT_THINK_TAGS,
        )
    assert time.process_time() - started < 10.0, "quadratic rules take minutes here; linear ones well under a second"


PIECES = st.sampled_from(
    [*HOSTILE, "33", "C", "\\boxed{33}", "Answer: ", ".", "or", "-", "\\frac{1}{2}", "x", "\ud83d"]
)


@settings(max_examples=300, deadline=None)
@given(
    text=st.one_of(st.text(), st.lists(PIECES, max_size=12).map("".join)), mode=st.sampled_from(["strict", "lenient"])
)
def test_no_text_makes_the_rules_raise_and_a_right_answer_is_the_gold_one(text, mode):
    found = integer(text, mode=mode)
    assert (found.verdict == "correct") == (found.extracted == 33)
    if mode == "strict":
        assert not found.flags & {"fallback", "evaluated"}
    chosen = letter(text, mode=mode)
    assert (chosen.verdict == "correct") == (chosen.extracted == "C")
    assert chosen.extracted is None or chosen.extracted in "ABCD"
    exam(text, "33")
    exam(text, "C", "multipleChoice")


def test_the_final_channel_is_what_a_judge_is_shown():
    shown = final_channel("a</think>b", None, "stop", think_tags=DEFAULT_THINK_TAGS)
    assert (shown.text, shown.before) == ("b", "a</think>")
