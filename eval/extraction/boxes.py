r"""Boxes of LaTeX: \boxed{...}, \fbox{...}, and \boxed 33 without braces."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from detharness.eval.extraction.searching import last_first
from detharness.eval.extraction.spelling import LONGEST

_COMMAND = re.compile(r"\\(?:boxed|fbox)(?:\s{0,20}(?P<brace>\{)|[ \t$]{0,20}(?P<bare>[-+\u2212]?[0-9]{1,100}))")
_BRACE = re.compile(r"(\\*)([{}])")
_DIGITS = re.compile(r"[0-9]*+")


@dataclass(frozen=True)
class Box:
    """Where a box stands, and its content; None where its brace does not close within LONGEST characters of text."""

    start: int
    end: int
    content: str | None


def boxes(text: str) -> Iterator[Box]:
    """The last boxes, by where they begin, the last first."""
    for at in last_first(text, ("\\boxed", "\\fbox")):
        command = _COMMAND.match(text, at)
        if command is not None and command["bare"]:
            yield Box(at, command.end(), command["bare"])
        elif command is not None:
            end = _closing(text, command.end())
            yield Box(at, len(text), None) if end is None else Box(at, end, text[command.end() : end])


def _closing(text: str, start: int) -> int | None:
    r"""Where the brace closes that opens ahead of ``start``. \{ is a printed brace; \\{ is none."""
    digits = _DIGITS.match(text, start)
    start, depth = digits.end() if digits else start, 1
    for found in _BRACE.finditer(text, start, start + LONGEST):
        if len(found[1]) % 2 == 0:
            depth += 1 if found[2] == "{" else -1
            if depth == 0:
                return found.end() - 1
    return None
