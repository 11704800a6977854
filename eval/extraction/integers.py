"""Answers that are integers from 0 to 999."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import replace

from detharness.eval.extraction.boxes import Box, boxes
from detharness.eval.extraction.markers import markers
from detharness.eval.extraction.numerals import Found, read_integer
from detharness.eval.extraction.spelling import LONGEST, unwrapped

_LINE = 400  # Characters of a marker's line that are looked at.
_LAST = re.compile(
    r"(?<![0-9.,A-Za-z_^])(?:(?<=[\s($=])[-\u2212])?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?![0-9]|[.,][0-9])"
)
_PLACEHOLDERS = frozenset({"answer", "your answer", "final answer", "number", "integer", "..."})
_FALLBACK = frozenset({"fallback"})


def find_integer(text: str, *, lenient: bool) -> Found:
    """The answer in a final channel: the last box that is not empty, else the last marker line with a number.

    Lenient, with the flag "fallback": a sum of two or an exact fraction in them is worked out, and where there is no
    box and no such line that can be read, the last integer counts.
    """
    box, cut = _last_box(text)
    found = _marked(text) if box is None else read_integer(box.content or "", whole=True)
    if not lenient:
        return Found("none") if found.state == "evaluated" else found
    if found.state == "evaluated":
        return Found("value", found.value, _FALLBACK | {"evaluated"})
    return _last_integer(text[:cut]) if found.state == "none" else found


def _last_box(text: str) -> tuple[Box | None, int]:
    """The last box that holds something, the outer of two in each other; and where a box begins that never closes."""
    last, cut = None, len(text)
    for box in boxes(text):
        if last is not None and box.start < last.end - 2 * LONGEST:
            break  # None that begins here can be around it.
        if box.content is None:
            cut = box.start
        elif (last is None and _holds_something(box.content)) or (last is not None and box.end > last.end):
            last = box
    return last, cut


def _holds_something(content: str) -> bool:
    held = unwrapped(content).strip(" {}.,;:~\\").casefold()
    return bool(held) and held not in _PLACEHOLDERS


def _marked(text: str) -> Found:
    """What the last marker line with a number says; "none" where it cannot be read."""
    for marker in markers(text):
        line = marker.line[:_LINE]
        if not marker.tag and not marker.correct_option and any(map(str.isdigit, line)):
            found = read_integer(line, whole=False)
            return Found("none") if found.state == "other" else found
    return Found("none")


def _last_integer(text: str) -> Found:
    for window in (1000, len(text)):  # The end of a long reply first.
        last = deque(_LAST.finditer(text, max(0, len(text) - window)), maxlen=1)
        if last:
            return replace(read_integer(last[0][0], whole=True), flags=_FALLBACK)
    return Found("none")
