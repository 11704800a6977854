r"""Boxes of LaTeX: \boxed{...}, \fbox{...}, and \boxed 33 without braces."""

from __future__ import annotations

import re
from collections.abc import Iterator

_BOX = re.compile(r"\\(?:boxed|fbox)\s{0,20}(?:\{|(?P<bare>[-+]?[0-9]{1,40}(?![0-9])))")
_MOST = 100  # Boxes that are looked at, from the last: a reply with more of them repeats itself.
_BRACE = re.compile(r"[{}]")


def boxes(text: str) -> Iterator[tuple[int, str]]:
    """(position, content) of the last balanced boxes, the last first. Linear in ``text`` whatever stands in it."""
    starts = list(_BOX.finditer(text)) if "\\boxed" in text or "\\fbox" in text else []
    if not starts:
        return
    starts = starts[-_MOST:]
    last = starts[-1]
    if not last["bare"]:
        end = _end_of(text, last.end())
        if end is not None:  # Most replies end here, without a pass over the whole text.
            yield last.start(), text[last.end() : end]
            starts = starts[:-1]
    if not starts:
        return
    ends = _ends(text, {match.end() for match in starts if not match["bare"]})
    for match in reversed(starts):
        if match["bare"]:
            yield match.start(), match["bare"]
        elif match.end() in ends:
            yield match.start(), text[match.end() : ends[match.end()]]


def _end_of(text: str, start: int) -> int | None:
    depth = 1
    for brace in _BRACE.finditer(text, start):
        if not _escaped(text, brace.start()):
            depth += 1 if brace[0] == "{" else -1
            if depth == 0:
                return brace.start()
    return None


def _ends(text: str, wanted: set[int]) -> dict[int, int]:
    """Position behind an opening brace -> position of the brace that closes it, for those in ``wanted``."""
    found: dict[int, int] = {}
    open_ones: list[int] = []
    for brace in _BRACE.finditer(text):
        if _escaped(text, brace.start()):
            continue
        if brace[0] == "{":
            open_ones.append(brace.end())
        elif open_ones and (start := open_ones.pop()) in wanted:
            found[start] = brace.start()
    return found


def _escaped(text: str, at: int) -> bool:
    r"""Whether the brace at ``at`` is a printed one: \{ but not \\{."""
    return at > 0 and text[at - 1] == "\\" and not (at > 1 and text[at - 2] == "\\")
