"""Lines that say where the answer is: "Final answer: 33", "**Answer**", "the answer is C", "<answer>C</answer>"."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from detharness.eval.extraction.searching import last_first
from detharness.eval.extraction.spelling import LONGEST

_ANSWER = ("answer", "Answer", "ANSWER")
_OPTION = ("option", "choice")
_LENGTH = len("answer")  # Of every one of them.

_BEFORE = 48  # Characters that are looked at ahead of a place.
_FINAL = re.compile(r"(?:final|exact)[ \t*_]{1,8}\Z", re.IGNORECASE)
_CORRECT = re.compile(r"(?<![a-z])(?:correct|right|best)[ \t*_]{1,8}\Z", re.IGNORECASE)
_HEADING = re.compile(r"(?:\A|\n)[ \t*_#>`]*(?:(?:the|my|your|final|exact|correct)[ \t*_]{1,8}){0,3}\Z", re.IGNORECASE)

_DECORATION = r"[ \t*_`~\"'\u201d\u2019)\]}]*+"
_SAYS = re.compile(rf"{_DECORATION}(?:[:\uff1a=]|(?<=[\s*_`\"'])is(?!\w)[ \t*_]*[:\uff1a]?)", re.IGNORECASE)
_HEADS = re.compile(rf"{_DECORATION}(?:[-\u2013\u2014\u2192](?=[ \t*_`])|(?=[ \t#]*\r?(?:\n|\Z)))")
# The rest of a line that holds nothing but decoration, such lines below it, and the bullet of a list.
_NOTHING = re.compile(r"(?:(?:[ \t\r*_`~\"'$#>|\\()\[\]{}:.-]*+\n)++(?:[ \t]*[-\u2022][ \t]+)?)?[ \t\r*_`~\"']*+")


@dataclass(frozen=True)
class Marker:
    """A place where an answer is said to stand: position of the value, and the rest of its line.

    tag: <answer>. correct_option: "the correct option is", which only letters answer.
    """

    position: int
    line: str
    tag: bool = False
    correct_option: bool = False


def markers(text: str) -> Iterator[Marker]:
    """The last markers of ``text``, the last first. A value may stand on the next line that is not blank."""
    for at in last_first(text, _ANSWER + _OPTION):
        before, word = text[max(0, at - _BEFORE) : at], text[at : at + _LENGTH]
        behind = at + _LENGTH
        if before.rstrip("_")[-1:].isalnum():
            continue  # It is the end of a longer word.
        is_option = word in _OPTION
        if is_option and not _CORRECT.search(before):
            continue
        if before.endswith("<") and text.startswith(">", behind):
            yield _marker(text, behind + 1, tag=True)
            continue
        says = _SAYS.match(text, behind)
        if says is None and not is_option and (_FINAL.search(before) or _HEADING.search(before)):
            says = _HEADS.match(text, behind)
        if says is not None:
            yield _marker(text, says.end(), correct_option=is_option)


def _marker(text: str, at: int, *, tag: bool = False, correct_option: bool = False) -> Marker:
    skipped = _NOTHING.match(text, at)
    start = skipped.end() if skipped else at
    end = text.find("\n", start, start + LONGEST)
    return Marker(start, text[start : end if end >= 0 else start + LONGEST], tag, correct_option)
