"""The first position at which two outputs part, whatever they differ in."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detharness.eval.differences import first_difference, first_index, same_output
from detharness.eval.records import Output


def output(text="abc", *, reasoning=None, tokens=None, finish="stop", bits=None, count=None):
    return Output(text, reasoning, tokens, finish, 1, count, bits)


@given(st.text("ab", max_size=40), st.text("ab", max_size=40))
def test_the_first_index_by_definition(a, b):
    parted = [index for index, (x, y) in enumerate(zip(a, b, strict=False)) if x != y]
    assert first_index(a, b) == first_index(tuple(a), tuple(b)) == (parted[0] if parted else min(len(a), len(b)))


@pytest.mark.parametrize(
    ("a", "b", "part", "index"),
    [
        (output("abc"), output("abd"), "text", 2),
        (output("abc"), output("ab"), "text", 2),
        (output("abc"), output(None), "text", None),
        (output("abc", reasoning="x"), output("abd", reasoning="y"), "reasoning", 0),
        (output("abc", reasoning="x"), output("abc"), "reasoning", None),
        (output(tokens=(1, 2)), output(tokens=(1, 3)), "token_ids", 1),
        (output(tokens=(1, 2)), output(tokens=(1, 2, 3)), "token_ids", 2),
        (output("abc", tokens=(1, 2)), output("abd"), "text", 2),
        (output("abc", tokens=(1, 2)), output("abd", tokens=(1, 2)), "text", 2),
        (output(), output(finish="length"), "finish_reason", None),
    ],
)
def test_where_two_outputs_part(a, b, part, index):
    for ours, theirs in ((a, b), (b, a)):
        found = first_difference(ours, theirs)
        assert (found.part, found.index) == (part, index)
        assert not same_output(ours, theirs)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (output(bits="a"), output(bits="b")),
        (output(tokens=(1,)), output()),
        (output(count=3), output(count=4)),
    ],
)
def test_what_is_no_difference_of_outputs(a, b):
    assert first_difference(a, b) is None
    assert same_output(a, b)


def test_the_context_is_what_stands_around_the_first_difference():
    found = first_difference(output("x" * 500 + "left" + "y" * 500), output("x" * 500 + "right" + "z" * 500))
    assert found.text == ("x" * 40 + "left" + "y" * 36, "x" * 40 + "right" + "z" * 35)
