import pytest

from detharness.eval.grade.budget import Budget
from detharness.eval.records import Output

WORDS = ["<think>", "twelve", "</think>", " The answer", " is", " 33", ".", "\ufffd", "€"]


def decode(ids):
    return "".join(WORDS[index] for index in ids)


def output(text, ids=None, *, tokens=None, reasoning=None, finish="stop"):
    return Output(text, reasoning, ids, finish, 3, tokens if ids is None else len(ids), None)


FULL = output("<think>twelve</think> The answer is 33.", (0, 1, 2, 3, 4, 5, 6))


@pytest.mark.parametrize(
    ("tokens", "text"), [(2, "<think>twelve"), (5, "<think>twelve</think> The answer is"), (6, FULL.text[:-1])]
)
def test_a_longer_reply_is_cut_at_its_token(tokens, text):
    cut = Budget(tokens, decode, "d").cut(FULL)
    assert (cut.text, cut.finish_reason, len(cut.token_ids), cut.completion_tokens) == (text, "length", tokens, tokens)


@pytest.mark.parametrize("reply", [FULL, output("short", tokens=7), output(None, tokens=7, reasoning="r")])
def test_a_reply_within_the_budget_stays(reply):
    assert Budget(7, None, None).cut(reply) is reply


def test_a_stop_string_that_was_cut_off_is_no_obstacle():
    cut = Budget(3, decode, "d").cut(output("<think>twelve</think> The an", (0, 1, 2, 3, 4)))
    assert cut.text == "<think>twelve</think>"


def test_half_a_character_is_written_as_the_engine_writes_it():
    assert Budget(2, decode, "d").cut(output(" 33\u20ac", (5, 7, 8))) is None  # 7 is text there, no half of 8.

    def halves(ids):
        return " 33" + ("" if len(ids) == 1 else "\ufffd" if len(ids) == 2 else "\u20ac")

    assert Budget(2, halves, "d").cut(output(" 33\u20ac", (5, 7, 8))).text == " 33\ufffd"


@pytest.mark.parametrize(
    ("reply", "known"),
    [
        (output("The answer is 33.", tokens=9), False),  # No ids.
        (output("The answer is 33.", None), False),  # Not even a count.
        (output("another text", (3, 4, 5, 6, 6, 6, 6, 6)), False),  # Ids of another tokenizer.
        (output(" The answer", (0, 1, 2, 3), reasoning="twelve"), False),
        (output(None, tokens=9, reasoning="and on and on"), True),
        (output("\n", tokens=9), True),
    ],
)
def test_what_cannot_be_known_is_not_guessed(reply, known):
    cut = Budget(3, decode, "d").cut(reply)
    assert (cut is not None) == known
    assert cut is None or cut.finish_reason == "length"


def test_without_a_tokenizer_nothing_is_cut():
    assert Budget(3, None, None).cut(FULL) is None
