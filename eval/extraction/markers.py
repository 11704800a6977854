"""Lines that say where the answer is: "Final answer: 33", "**Answer**", "the answer is C"."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator

_MARKER = re.compile(
    r"(?<![a-z])(?:(?:final|exact|correct|my)[ \t]{1,4}){0,2}"
    r"(?:answer|(?:correct|right|best)[ \t]{1,4}(?:option|choice))"
    r"(?:[ \t]{1,4}(?:choice|option))?"
    r"(?:[*_`\"']{0,8}[ \t]{0,8}(?:is|was)(?![a-z])[*_`\"' \t]{0,8}[:=]?|"
    r"[*_`\"' \t]{0,16}(?:[:=]|[-\u2013\u2014](?=[ \t*_`]))|(?<=answer)[*_`: \t]{0,16}(?=\r?\n|$))",
    re.IGNORECASE,
)
_AHEAD = re.compile(r"[*_`\"'#> \t\r]{0,32}(?:\n[*_`\"'#> \t\r]{0,32}){0,6}")
_LONGEST = 2000  # Characters of a line that are looked at; an answer is short.
_MOST = 100  # Markers that are looked at, from the last: a reply with more of them repeats itself.
_TAIL = 4096  # The last answer wins, so the end of a long reply is searched first.


def marked(text: str) -> Iterator[tuple[int, str]]:
    """(position of the value, the rest of its line) for the last markers, the last first.

    A value may stand on the next line that is not blank. Positions count from the start of ``text``.
    """
    cut = max(0, len(text) - _TAIL)
    last = deque(_search(text, cut), _MOST)
    yield from reversed(last)
    if cut and len(last) < _MOST:
        first = last[0][0] if last else len(text)
        yield from reversed(deque((found for found in _search(text, 0) if found[0] < first), _MOST))


def _search(text: str, cut: int) -> Iterator[tuple[int, str]]:
    for match in _MARKER.finditer(text, cut):
        if cut and match.start() == cut:
            continue  # It may be the end of a longer word.
        start = _AHEAD.match(text, match.end()).end()  # type: ignore[union-attr] # It matches nothing, too.
        end = text.find("\n", start, start + _LONGEST)
        yield start, text[start : end if end >= 0 else start + _LONGEST]
