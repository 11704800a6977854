"""Delta debugging: what is left of a failing input when nothing more can be taken away.

The algorithm is ddmin of Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", IEEE Transactions
on Software Engineering 28(2), 2002. Nothing of ours is known here.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TypeVar

Item = TypeVar("Item")


def ddmin(items: Sequence[Item], fails: Callable[[Sequence[Item]], bool]) -> list[Item]:
    """A part of ``items``, in order, that fails, while dropping any one item of it does not: 1-minimal.

    ``items`` themselves are known to fail. The empty list is tried first. Needs at most about n² tests, and about
    log n where one item alone fails.
    """
    held = list(items)
    if not held or fails([]):
        return []
    chunks = 2
    while len(held) > 1:
        borders = [len(held) * index // chunks for index in range(chunks + 1)]
        parts = list(itertools.pairwise(borders))
        part = next((held[low:high] for low, high in parts if fails(held[low:high])), None)
        if part is not None:
            held, chunks = part, 2
            continue
        rests = (held[:low] + held[high:] for low, high in parts)
        # With two chunks the rest of one is the other.
        rest = next((rest for rest in rests if fails(rest)), None) if chunks > 2 else None
        if rest is not None:
            held, chunks = rest, max(chunks - 1, 2)
        elif chunks == len(held):
            break
        else:
            chunks = min(2 * chunks, len(held))
    return held


def least(low: int, high: int, fails: Callable[[int], bool]) -> int:
    """A number from ``low`` to ``high`` that fails, while the next smaller one does not.

    ``high`` is known to fail. ``low`` is tried first, then halves of the way; failing need not be monotone.
    """
    if high <= low:
        return high
    if fails(low):
        return low
    step = (high - low) // 2
    while step:
        if high - step > low and fails(high - step):
            high -= step
        else:
            step //= 2
    return high
