"""Humanity's Last Exam without a judge: a letter, or a text that equals the gold answer; the rest needs a judge."""

from __future__ import annotations

import re
from fractions import Fraction

from detharness.eval.extraction.boxes import boxes
from detharness.eval.extraction.markers import markers
from detharness.eval.extraction.searching import last_first
from detharness.eval.extraction.spelling import unwrapped

_WORDS = ("confidence", "Confidence", "CONFIDENCE")
_LINE = re.compile(r"(?:\A|\n)[ \t*_`\"'#>-]*\Z")
_PERCENT = re.compile(r"[*_`\"' \t]*+[:\uff1a=][*_`\"' \t]*+([0-9]{1,3})(?:\.[0-9]{1,9}(?=[ \t]*%))?(?![0-9.]*[0-9])")
_LABEL = re.compile(r"[\s*_`\"'#>-]*confidence\b[*_`\"' \t]*[:\uff1a=]", re.IGNORECASE)
_DECIMAL = re.compile(r"[-+]?(?:[0-9]{1,3}(?:,[0-9]{3}){1,8}|[0-9]{1,30})(?:\.[0-9]{1,30})?")


def stated_answer(text: str) -> str | None:
    """The last stated answer: a marker's line, or a box that stands in it, behind it or alone."""
    line = next(
        (
            (marker.position, value)
            for marker in markers(text)
            if (value := _trimmed(marker.line)) and not _LABEL.match(marker.line)
        ),
        None,
    )
    box = next(((box.start, value) for box in boxes(text) if (value := (box.content or "").strip())), None)
    if line is None or (box is not None and box[0] >= line[0]):
        return None if box is None else box[1]
    return line[1]


def equals(answer: str, gold: str) -> bool:
    """Whether the two are one text in one spelling, or one decimal number. Case counts: Co is not CO."""
    one, other = _folded(answer), _folded(gold)
    if one == other:
        return True
    numbers = [_number(one), _number(other)]
    return None not in numbers and numbers[0] == numbers[1]


def confidence(text: str) -> int | None:
    """Percent as the reply's last line of the form "Confidence: 90%" says; None where it says none from 0 to 100."""
    for at in last_first(text, _WORDS):
        if _LINE.search(text, max(0, at - 16), at):
            found = _PERCENT.match(text, at + len("confidence"))
            return int(found[1]) if found and int(found[1]) <= 100 else None
    return None


def _trimmed(line: str) -> str:
    text = line.strip().strip("*_`").strip()
    return text[:-1].rstrip() if text.endswith(".") else text


def _folded(text: str) -> str:
    return _trimmed(unwrapped(text))


def _number(text: str) -> Fraction | None:
    return Fraction(text.replace(",", "")) if _DECIMAL.fullmatch(text) else None
