"""The integer that a short text states: its tokens, one letter each, and what an order of letters means."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from typing import Literal

from detharness.eval.extraction.spelling import unwrapped

_DIGITS = 18  # An int of more is never made; it is out of range however long it is.
_DROPPED = re.compile(
    r"\^?\s?\{?\s?\\circ\s?\}?|\N{DEGREE SIGN}|\\degrees?(?![a-z])|\\?%"  # Degrees and percent.
    r"|\\pmod\s?\{(?:[^{}]|\{[^{}]*\})*\}|\(?\s?\\?[pb]?mod(?:ulo)?(?![a-z])\s?\{?\s?[0-9][0-9,]*\s?\}?\s?\)?"
)
_UNITS = r"(?:mm|cm|km|ft|in|yd|mi|kg|deg|st|nd|rd|th)(?![^\W\d_])(?:\s?\^\s?\{?[23]\}?)?"
_NOT_UNITS = (
    "times plus minus divided over multiplied squared cubed factorial choose power point half dozen hundred thousand "
    "million billion to"
)

# N number, F fraction, E relation, U unequal, Q plus or minus, P plus, M minus, D over, S between several values,
# T the end of a statement, O C opening and closing, W word, X anything else.
_TOKEN = re.compile(
    rf"""
    (?P<N>[0-9]{{1,3}}(?:,[0-9]{{3}})+(?![0-9])(?:\.[0-9]+)?|[0-9]+(?:\.[0-9]+)?)(?P<unit>\s?{_UNITS})?
    |(?P<F>\\[dt]?frac\s?\{{\s?[-+]?[0-9]+\s?\}}\s?\{{\s?[0-9]+\s?\}})
    |(?P<U>[!<>]=|=[<>]|\\(?:not|neq?|leq?|geq?)(?![a-z])\s?=?)
    |(?P<E>=|\\approx(?![a-z])|\\equiv(?![a-z])|\\sim(?:eq)?(?![a-z])|[\u2248\u2261\u2243])
    |(?P<Q>\u00b1|\\pm(?![a-z]))
    |(?P<P>\+)
    |(?P<dash>[\u2013\u2014]|(?<=\s)-+(?=\s[^\W\d_]{{2}}))
    |(?P<M>-)
    |(?P<D>/)
    |(?P<S>[,;&]|(?:or|and)(?![^\W\d_])|\\(?:lor|land|vee|wedge)(?![a-z]))
    |(?P<T>[.?:\u2026]+(?=[\s*_]|$))
    |(?P<O>\\?\{{|[(\[])
    |(?P<C>\\?\}}|[)\]])
    |(?P<skipped>\*\*+|["'`\u2018\u2019\u201c\u201d\s])
    |(?P<W>[^\W\d_]{{2,}}(?:\s?\^\s?\{{?\s?-?[0-9]\s?\}}?)?)
    |(?P<X>\\[A-Za-z]+|.)
    """,
    re.VERBOSE | re.DOTALL,
)
# "N =", "m+n =", "m+n = 5+28 =", never "33 for n =".
_NAME = re.compile(r"(?:(?:[^STUEN]*+|[^STUEW]*+)E)*+")
_VALUE = re.compile(r"O*([PM]?N)C*(?=[TWSN]|$)")
_SUM = re.compile(r"O*([PM]?NPN)C*(?=[TWS]|$)")
_RATIO = re.compile(r"O*(F|[PM]?NDN)C*(?=[TWS]|$)")
_EITHER = re.compile(r"O*QN")
_ANOTHER = re.compile(r"N|W*+S+(?:[^STNE]*E)?O*[PM]?N")
_REMARK = re.compile(r"[TWSCO]*")


@dataclass(frozen=True)
class Found:
    """What was found. value: an int, or the first digits of one too long to make; None without one.

    state: "value"; "several" values where one is asked for; "other": an answer that is no integer; "evaluated": one
    that only a lenient reading makes; "none".
    """

    state: Literal["value", "several", "other", "evaluated", "none"]
    value: int | str | None = None
    flags: frozenset[str] = frozenset()


def read_integer(text: str, *, whole: bool) -> Found:
    """The integer that ``text`` states; "none" where it holds nothing.

    whole: nothing but the answer stands in it, as in a box. Else it is a line that begins with the answer and may go on
    about it: up to the first word or end of a sentence.
    """
    kinds, tokens = _tokens(unwrapped(text, _wrapped), whole=whole)
    if not kinds:
        return Found("none")
    start = _end(_NAME, kinds, 0)
    if _EITHER.match(kinds, start):
        return Found("several")
    for pattern in (_VALUE, _SUM, _RATIO):
        if found := pattern.match(kinds, start):
            rest = kinds[found.end() :]
            if _ANOTHER.match(rest) or (whole and re.search("[NF]", rest)):
                return Found("several")
            if whole and not _REMARK.fullmatch(rest):
                return Found("other")
            stated = "".join(tokens[found.start(1) : found.end(1)])
            return Found("value", _integer(stated)) if pattern is _VALUE else _worked_out(stated)
    return Found("other")


def _wrapped(match: re.Match[str]) -> str:
    r"""What stands for \text{...}: words apart from what is around them; "m" in it is a unit and no variable."""
    content = match[1]
    if content.strip().isdigit():
        return content
    return f" {re.sub(r'(?<![^ ,.])[A-Za-z](?![^ ,.])', 'units', content)} "


def _tokens(text: str, *, whole: bool) -> tuple[str, list[str]]:
    """One letter for each token of ``text``, and the tokens."""
    text = re.sub(r"\s+", " ", _DROPPED.sub(" ", text)).strip(" *_#>")
    if not whole:
        text = re.sub(r"!+(?=\s|$)", ".", text)  # Behind the answer of a box it is a factorial.
    kinds, tokens = "", []
    for match in _TOKEN.finditer(text):
        kind, token = match.lastgroup or "X", match[0]
        if kind != "skipped":
            kinds += _kind(kind, match, kinds, text)
            tokens.append(match["N"] or token)
    return kinds, tokens


def _kind(kind: str, match: re.Match[str], before: str, text: str) -> str:
    token, after_space = match[0], text[match.start() - 1 : match.start()] == " "
    if kind == "unit":
        kind = "N"
    if kind == "N" and match["N"].partition(".")[2].strip("0"):
        return "X"  # 33.5
    if kind == "dash":
        return "T"
    if kind == "O" and token == "(" and after_space and before[-1:] in ("N", "F", "C"):
        return "T"  # "33 (the sum of both)", where 2(33) is a product.
    if kind == "W" and (token.lower() in _NOT_UNITS.split() or (before[-1:] == "N" and not after_space)):
        return "X"  # "33 squared", or 33ab
    if kind == "X" and not token.isascii() and unicodedata.category(token) in ("So", "Mn", "Cf"):
        return "T"  # A tick, an emoji.
    return kind


def _end(pattern: re.Pattern[str], text: str, start: int) -> int:
    match = pattern.match(text, start)
    return match.end() if match else start


def _integer(text: str) -> int | str:
    digits = text.replace(",", "").split(".")[0]
    sign = "-" if digits.startswith("-") else ""
    digits = digits.lstrip("+-").lstrip("0") or "0"
    return int(sign + digits) if len(digits) <= _DIGITS else f"{sign}{digits[:40]}"


def _worked_out(text: str) -> Found:
    """The two sums that a lenient reading does: integer + integer, and a fraction that divides exactly."""
    parts = [_integer(part) for part in re.findall(r"(?:(?<![0-9.])-)?[0-9][0-9,.]*", text)]
    left, right = (part if isinstance(part, int) else None for part in parts)
    if left is None or right is None:
        return Found("other")
    if "+" in text[1:] and "frac" not in text:
        return Found("evaluated", left + right)
    return Found("evaluated", left // right) if right and left % right == 0 else Found("other")
