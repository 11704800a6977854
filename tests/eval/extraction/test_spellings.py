"""How an answer is spelled: what is read through, what is refused, and that neither takes long."""

import time

import pytest

from detharness.errors import UsageError
from detharness.eval.extraction import DEFAULT_THINK_TAGS, judge_reply
from detharness.eval.extraction.boxes import boxes
from detharness.eval.extraction.exam import equals
from detharness.eval.records import TaskRow

GOLD = {"integer": "33", "letter": "C", "hle": "42"}
OPTIONS = ("one", "two", "three", "four")


def judge(kind, text, mode="strict", tags=DEFAULT_THINK_TAGS):
    row = TaskRow("t", 1, "text", "d", "q", GOLD[kind], OPTIONS if kind == "letter" else None, None, (), {})
    return judge_reply(kind, row, text, None, "stop", mode=mode, think_tags=tags)


def integer(text, **options):
    return judge("integer", text, **options)


def letter(text, **options):
    return judge("letter", text, **options)


@pytest.mark.parametrize(
    "content",
    [
        "33.",
        "33.00",
        r"\$33",
        r"33\%",
        "33 square units",
        r"33\text{ m}",
        r"33\text{ m}^2",
        r"33\,\text{cm}^2",
        "33cm",
        r"\left\{33\right\}",
        "{33}",
        "f(3) = 33",
        r"\angle ABC = 33",
        "m + n = 5 + 28 = 33",
        "33, as required",
        r"33\pmod{10^3}",
        r"33\ (\text{mod } 1000)",
        r"33 \bmod 1000",
        r"\fbox{m+n=33}",
        r"33\text{ (the sum)}",
        "3\u200b3",
    ],
)
def test_a_box_is_read_through_its_decoration(content):
    assert integer(f"So \\boxed{{{content}}}.").extracted == 33


@pytest.mark.parametrize(
    ("content", "verdict"),
    [
        ("33 12", "ambiguous"),
        ("12; 33", "ambiguous"),
        (r"12\text{ and }33", "ambiguous"),
        (r"\fbox{12} or 33", "ambiguous"),
        (r"\{12, 33\}", "ambiguous"),
        ("12 days and 33 hours", "ambiguous"),
        ("33!", "incorrect"),
        ("33ab", "incorrect"),
        ("2(33)", "incorrect"),
        ("33(2)", "incorrect"),
        (r"33\text{ thousand}", "incorrect"),
        (r"33\text{ squared}", "incorrect"),
        ("x != 33", "incorrect"),
        ("x <= 33", "incorrect"),
        (r"x \neq 33", "incorrect"),
        (r"x \geq 33", "incorrect"),
        ("33\u00bd", "incorrect"),
        ("3\u2083", "incorrect"),
        ("1\u2009033", "incorrect"),
        ("1+2+30", "incorrect"),
        (r"33 \text{ or } x", "incorrect"),
    ],
)
def test_a_box_that_says_something_else_is_not_33(content, verdict):
    found = integer(f"So \\boxed{{{content}}}.")
    assert found.verdict == verdict
    assert found.extracted != 33


@pytest.mark.parametrize(
    "text",
    [
        "The answer is $33$, because 5+28=33.",
        "The answer is 33 for n=7 terms.",
        "Answer: 33 (AIME 2026, Problem 5)",
        "Answer: **33** \u2705",
        "Answer: 33!",
        "Answer:\n\\[\n33\n\\]",
        "Answer:\n---\n33",
        "Answer:\n- 33",
        "The answer is 33 - indeed.",
        "The answer is 33\u2014indeed.",
        "__Answer__: 33",
        "\\boxed{12\n\nAnswer: 33",
        "Answer: 33\n\nI hope that the answer is clear.",
    ],
)
def test_a_line_may_go_on_about_its_answer(text):
    assert integer(text).extracted == 33


@pytest.mark.parametrize(
    "text",
    [
        "The answer is not 33.",
        "Answer: 33 squared",
        "Answer: 33 plus 5",
        "Answer: 33x",
        "Answer: 33 - 12",
        "Answer: 33.5",
        "nonanswer: 33",
        "wrong_answer: 33",
        "Answer: 12\nIn fact the answer is not 12",
    ],
)
def test_a_line_that_cannot_be_read_is_no_answer(text):
    assert integer(text).verdict == "no_answer"


@pytest.mark.parametrize(
    "text",
    [
        r"\boxed{\textbf{(C) }33}",
        r"\boxed{C) three}",
        r"\boxed{C. three}",
        r"\boxed{\text{Option C}}",
        "Answer: C, A is wrong.",
        "Answer: C, not A",
        "Answer: C and a proof of it",
        "<answer>C. three</answer>",
        "<ANSWER>\nC\n</ANSWER>",
        "Answer: B, I said.\nBut \\boxed{C}",
        "Answer: c",
        "***ANSWER***:\n\n- C",
    ],
)
def test_a_letter_is_read_through_its_decoration(text):
    assert letter(text).extracted == "C"


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("Answer: C=O is the group", "no_answer"),
        ("Answer: c = 3e8 m/s", "no_answer"),
        ("Answer: C(CH3)4", "no_answer"),
        ("Answer: C\u2082", "no_answer"),
        ("Answer: C\u2013H bonds", "no_answer"),
        ("Answer: A.C. circuits", "no_answer"),
        (r"\boxed{C-terminal}", "no_answer"),
        (r"\boxed{A few}", "no_answer"),
        ("C) three", "no_answer"),
        ("Answer: A B", "ambiguous"),
        ("Answer: A/C", "ambiguous"),
        (r"\boxed{B \text{ or } C}", "ambiguous"),
        ("<answer>B or C</answer>", "ambiguous"),
        ('{"answer": "B or C"}', "ambiguous"),
        ("Answer: C\n\\boxed{A, B}", "ambiguous"),
    ],
)
def test_what_is_not_a_single_letter(text, verdict):
    assert letter(text).verdict == verdict


def test_a_lenient_reading_never_takes_the_place_of_a_strict_one():
    text = "Answer: C\nNote that the answer is surely not (B)."
    assert letter(text, mode="lenient").extracted == "C"
    assert letter("The answer is neither (A) nor (B).", mode="lenient").verdict == "ambiguous"


def test_raised_and_lowered_digits_are_not_digits():
    assert not equals("10\u00b2", "10\u00b3")
    assert not equals("10\u00b2", "102")
    assert not equals("H\u2082O", "H\u2083O")
    assert equals("10\u00b2", "10^2")


def test_a_confidence_line_is_no_answer():
    found = judge("hle", "Answer:\nConfidence: 42%")
    assert (found.verdict, found.extracted, found.confidence) == ("needs_judge", None, 42)


@pytest.mark.parametrize(
    ("line", "percent"), [("My confidence: 20 is low", None), ("Confidence: 85.5%", 85), ("- Confidence: 7 %", 7)]
)
def test_only_a_line_of_its_own_states_a_confidence(line, percent):
    assert judge("hle", f"Answer: 1\n{line}").confidence == percent


def test_the_last_confidence_line_counts_even_where_it_says_none():
    assert judge("hle", "Confidence: 50\nAnswer: 1\nConfidence: high").confidence is None


def test_a_box_that_never_closes_lends_no_number():
    assert integer(r"so \boxed{3 and {x}", mode="lenient").verdict == "no_answer"


def test_printed_braces_close_no_box():
    assert [box.content for box in boxes(r"\boxed{\{33\}} \boxed{\\{12\\}}")] == [r"\\{12\\}", r"\{33\}"]


def test_a_heading_in_square_brackets_opens_no_reasoning():
    assert integer("[Reasoning] It is odd.\n\\boxed{33}").extracted == 33
    assert integer("[THINK] It is odd.\n\\boxed{33}").verdict == "no_answer"


def test_a_task_without_a_whole_number_is_refused():
    row = TaskRow("t", 1, "text", "d", "q", "thirty", None, None, (), {})
    with pytest.raises(UsageError, match="the task 't' has no whole number"):
        judge_reply("integer", row, "33", None, "stop", mode="strict", think_tags=DEFAULT_THINK_TAGS)


def test_a_think_tag_may_be_named_as_it_is_written():
    for tag in ("plan", "<plan>", "\u25c1plan\u25b7"):
        assert integer("<plan>a</plan>\\boxed{33}", tags=(tag,)).extracted == 33
    with pytest.raises(UsageError, match="needs a name"):
        integer("33", tags=("",))


@pytest.mark.parametrize("kind", ["integer", "letter", "hle"])
@pytest.mark.parametrize(
    "unit",
    [
        "\u0300\u0316",
        "\\boxed{x ",
        "{\\boxed{1}",
        "confidence: 1\n",
        "final answer\n",
        "[",
        "\\boxed{9",
        "answer is C or ",
    ],
)
def test_a_megabyte_with_nothing_at_its_end_is_judged_in_linear_time(unit, kind):
    text = "Answer: " + unit * (1_000_000 // len(unit))
    started = time.process_time()
    judge(kind, text, mode="lenient")
    assert time.process_time() - started < 5.0, "quadratic rules take minutes here; linear ones well under a second"
