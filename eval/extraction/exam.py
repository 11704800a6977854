"""Humanity's Last Exam without a judge: a letter, or a text that equals the gold answer; the rest needs a judge."""

from __future__ import annotations

import re
from fractions import Fraction

from detharness.eval.extraction.boxes import boxes
from detharness.eval.extraction.markers import marked
from detharness.eval.extraction.spelling import plain, unwrapped

_CONFIDENCE = re.compile(r"confidence[*_`\"' \t]{0,16}[:=][*_`\"' \t]{0,16}([0-9]{1,3})(?![0-9.])[ \t]{0,4}%?", re.I)
_DECIMAL = re.compile(r"[-+]?(?:[0-9]{1,3}(?:,[0-9]{3}){1,8}|[0-9]{1,30})(?:\.[0-9]{1,30})?")


def stated_answer(text: str) -> str | None:
    """The last stated answer: a marker's line, or a box that stands behind it or alone."""
    line = next(((at, value) for at, found in marked(text) if (value := _trimmed(found))), None)
    box = next(((at, value) for at, found in boxes(text) if (value := found.strip())), None)
    if line is None or (box is not None and box[0] > line[0]):
        return None if box is None else box[1]
    return line[1]


def equals(answer: str, gold: str) -> bool:
    """Whether the two are one text in one spelling, or one decimal number."""
    if _folded(answer) == _folded(gold):
        return True
    numbers = [_number(_folded(text)) for text in (answer, gold)]
    return None not in numbers and numbers[0] == numbers[1]


def confidence(text: str) -> int | None:
    """Percent as the reply's last confidence line says; None without one, or beyond 100."""
    found = _CONFIDENCE.findall(text[-4096:]) or _CONFIDENCE.findall(text)
    return int(found[-1]) if found and int(found[-1]) <= 100 else None


def _trimmed(line: str) -> str:
    text = line.strip().strip("*_`").strip()
    return text[:-1].rstrip() if text.endswith(".") else text


def _folded(text: str) -> str:
    return " ".join(_trimmed(unwrapped(plain(text))).split())


def _number(text: str) -> Fraction | None:
    return Fraction(text.replace(",", "")) if _DECIMAL.fullmatch(text) else None
