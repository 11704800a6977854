"""Nothing from outside drives the terminal, and two different texts never look the same."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detharness.rendering.escape import visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, with é, 漢字 and 👩\u200d🚀", "plain, with é, 漢字 and 👩\u200d🚀"),
        ("two\nlines\r\n\tand a tab", r"two\nlines\r\n\tand a tab"),
        ("\x1b[2J\x1b]0;title\x07", r"\x1b[2J\x1b]0;title\x07"),
        ("\x9b31m\x7f\x00", r"\x9b31m\x7f\x00"),
        ("a\u202ereversed\u2066", r"a\u202ereversed\u2066"),
        ("zero\u200bwidth\ufeff", r"zero\u200bwidth\ufeff"),
        ("\u2028\u2029", r"\u2028\u2029"),
        ("\ud800 alone", r"\ud800 alone"),
        ("\U000e0041 tag", r"\U000e0041 tag"),
        ("a\\n", r"a\\n"),
    ],
)
def test_examples(text, shown):
    assert visible(text) == shown


def read_back(shown: str) -> str:
    def character(match: re.Match[str]) -> str:
        short = {"\\": "\\", "n": "\n", "r": "\r", "t": "\t"}
        return short.get(match[1]) or chr(int(match[1][1:], 16))

    return re.sub(r"\\(\\|n|r|t|x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8})", character, shown)


@given(st.text())
def test_the_text_can_be_read_back_and_stays_on_one_printable_line(text):
    shown = visible(text)
    assert read_back(shown) == text
    assert len(shown.splitlines()) <= 1
    assert not re.search(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", shown)
