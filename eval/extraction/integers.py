"""Answers that are integers from 0 to 999."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from detharness.eval.extraction.boxes import boxes
from detharness.eval.extraction.markers import marked
from detharness.eval.extraction.spelling import unwrapped

_DIGITS = 18  # An int of more is never made; it is out of range however long it is.
_NUMBER = r"[-+]?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.0*)?(?![0-9])"
_WHOLE = re.compile(rf"({_NUMBER})\s*\.?")
_UNIT = re.compile(rf"({_NUMBER})\s*(?:\^\s*\{{?\s*\\circ\s*\}}?|°|(?:[A-Za-z][a-z]+\.?(?:\^\{{?[23]\}}?)?[\s.]*)+)\.?")
_MODULUS = re.compile(
    r"\s*(?:\(\s*mod\s*[0-9]+\s*\)|\\[pb]?mod\s*\{?\s*[0-9]+\s*\}?|\(\s*\\[pb]?mod\s*[0-9]+\s*\))\s*\.?$"
)
_RELATION = re.compile(r"=|\\approx|\\equiv|≈|≡")
_SET = re.compile(r"(?:\\\{|\{|\()\s*(.*?)\s*(?:\\\}|\}|\))", re.DOTALL)
_SEVERAL = re.compile(r"\s*(?:,|;|\bor\b|\band\b|\\lor|\\text)\s*")
_SUM = re.compile(r"([0-9]{1,9})\s*\+\s*([0-9]{1,9})")
_FRACTION = re.compile(r"\\[dt]?frac\s*\{\s*([0-9]{1,9})\s*\}\s*\{\s*([0-9]{1,9})\s*\}|([0-9]{1,9})\s*/\s*([0-9]{1,9})")
_LEADING = re.compile(rf"({_NUMBER})(?!\s*[-+*/^=\\{{<>\u00d7\u00f7\u00b7(])(?![.,]?[0-9A-Za-z])")
_LAST = re.compile(r"(?<![0-9.,A-Za-z_^])(?:(?<=[\s($=])-)?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?![0-9]|\.[0-9])")
_SENTENCE = re.compile(r"[.!?;](?:\s|$)|\n")
_CUT = re.compile(r"\\(?:boxed|fbox)\{")  # A box that was never closed: its number may go on.
_PLACEHOLDERS = frozenset({"answer", "your answer", "final answer", "number", "integer", "n", "x", "..."})
_LONGEST = 400


@dataclass(frozen=True)
class Found:
    """What was found. value: an int, or the digits of one too long to make; None without one.

    state: "value"; "several" values where one is asked for; "other": an answer that is no integer; "evaluated": one
    that only a lenient reading makes; "none".
    """

    state: Literal["value", "several", "other", "evaluated", "none"]
    value: int | str | None = None
    flags: frozenset[str] = frozenset()


def find_integer(text: str, *, lenient: bool) -> Found:
    """The answer in a final channel: the last box that is not empty, else the last marker line with a number.

    Lenient: a sum or an exact fraction in them is worked out, and where there is neither, the last integer counts, with
    the flag "fallback".
    """
    for _, content in boxes(text):
        cleaned = unwrapped(content[:_LONGEST])
        if cleaned and cleaned.casefold() not in _PLACEHOLDERS:
            found = read_integer(cleaned)
            return _strict(found) if not lenient else found
    for _, line in marked(text):
        cleaned = unwrapped(line[:_LONGEST].replace("\\boxed{}", "").replace("\\fbox{}", ""))
        if any(character.isdigit() for character in cleaned) and not _CUT.search(cleaned):
            found = _read_line(cleaned)
            if found.state in ("value", "several") or (found.state == "evaluated" and lenient):
                return found
            break
    if not lenient:
        return Found("none")
    cut = max(text.rfind("\\boxed{"), text.rfind("\\fbox{"))
    numbers = list(_LAST.finditer(text, 0, cut if cut >= 0 and "}" not in text[cut:] else len(text)))
    last = numbers[-1] if numbers else None
    return Found("none") if last is None else Found("value", _int(last[0]), frozenset({"fallback"}))


def _strict(found: Found) -> Found:
    return Found("none") if found.state == "evaluated" else found


def read_integer(text: str) -> Found:
    """The integer that ``text``, unwrapped and short, is."""
    body = _MODULUS.sub("", text).strip(" *_`'\"")
    if len(_pieces(body)) > 1 and all(_single(piece) is not None for piece in _pieces(body)):
        return Found("several")
    if body.startswith("\\pm"):
        return Found("several")
    inside = _SET.fullmatch(body)
    if inside is not None:
        return read_integer(inside[1])
    value = _single(body)
    if value is not None:
        return Found("value", value)
    worked = _worked_out(_value_of(body))
    return Found("other") if worked is None else Found("evaluated", worked, frozenset({"evaluated"}))


def _pieces(body: str) -> list[str]:
    if re.fullmatch(_NUMBER, body):
        return [body]  # Its commas group thousands.
    return [piece for piece in _SEVERAL.split(body) if piece]


def _value_of(body: str) -> str:
    """What stands behind the last = if a name stands before the first."""
    parts = _RELATION.split(body)
    return parts[-1].strip() if len(parts) > 1 and (not parts[0].strip() or re.search("[A-Za-z]", parts[0])) else body


def _single(body: str) -> int | str | None:
    value = _value_of(body)
    match = _WHOLE.fullmatch(value) or _UNIT.fullmatch(value)
    return None if match is None else _int(match[1])


def _int(text: str) -> int | str:
    digits = text.replace(",", "").split(".")[0]
    sign = "-" if digits.startswith("-") else ""
    digits = digits.lstrip("+-").lstrip("0") or "0"
    return int(sign + digits) if len(digits) <= _DIGITS else f"{sign}{digits[:40]}"


def _worked_out(body: str) -> int | None:
    if match := _SUM.fullmatch(body):
        return int(match[1]) + int(match[2])
    if match := _FRACTION.fullmatch(body):
        over, under = (int(part) for part in match.groups() if part is not None)
        return over // under if under and over % under == 0 else None
    return None


def _read_line(line: str) -> Found:
    """The integer at the head of a marker's line, whose first sentence may say more about it."""
    stop = _SENTENCE.search(line)
    sentence = line[: stop.start()] if stop else line
    found = read_integer(sentence)
    if found.state != "other":
        return found
    value = _value_of(_MODULUS.sub("", sentence)).lstrip("*_`'\"(")
    match = _LEADING.match(value)
    if match is None:
        return Found("other")
    rest = value[match.end() :].lstrip(" *_`'\"),")
    if re.match(r"(?:or|and)\s+[-+]?[0-9]", rest) or (
        value[match.end() :].lstrip().startswith(",") and rest[:1].isdigit()
    ):
        return Found("several")
    return Found("value", _int(match[1]))
