"""The text around the place where two replies part: what they share, then how each goes on."""

from __future__ import annotations

from itertools import takewhile

_BEFORE = 160  # Characters: enough to see what is being said, short enough to read two continuations beside it.
_AFTER = 80


def parting(reference: str, other: str) -> dict[str, str]:
    """{"common", "reference", "other"}: the end of the common text, and the beginnings of both continuations.

    Both continuations are empty where other tokens spell the same text.
    """
    shared = shared_length(reference, other)
    return {
        "common": reference[max(0, shared - _BEFORE) : shared],
        "reference": reference[shared : shared + _AFTER],
        "other": other[shared : shared + _AFTER],
    }


def shared_length(left: str, right: str) -> int:
    """How many characters two texts begin with in common."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False)))
