"""Counting equal things among repeated trials."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence


def unique_and_modal(items: Sequence[Hashable]) -> tuple[int, int]:
    """Number of distinct items, and how often the most frequent one occurs; (0, 0) of nothing."""
    counts = Counter(items)
    return len(counts), max(counts.values(), default=0)
