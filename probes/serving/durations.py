"""Quantiles of durations in memory that does not grow with their number."""

from __future__ import annotations

import math
from collections import Counter

_STEP = math.log(1.02)  # Buckets are 2 % wide.
_LEAST = 1e-6  # Seconds; what is shorter counts as this.


class Durations:
    """A histogram with logarithmic buckets: quantiles are exact to 2 %, the largest value exactly."""

    def __init__(self) -> None:
        self._buckets: Counter[int] = Counter()
        self._largest = 0.0

    def add(self, seconds: float) -> None:
        """Count one duration; a negative one counts as zero."""
        self._buckets[math.ceil(math.log(max(seconds, _LEAST) / _LEAST) / _STEP)] += 1
        self._largest = max(self._largest, seconds)

    def quantile(self, share: float) -> float | None:
        """The smallest value that ``share`` of all do not exceed; None of nothing."""
        left = math.ceil(share * self._buckets.total())
        for bucket in sorted(self._buckets):
            left -= self._buckets[bucket]
            if left <= 0:
                return min(_LEAST * math.exp(bucket * _STEP), self._largest)
        return None

    def summary(self) -> dict[str, float | int | None]:
        """Number, median, 99th percentile and largest, in seconds."""
        count = self._buckets.total()
        return {
            "n": count,
            "median": self.quantile(0.5),
            "p99": self.quantile(0.99),
            "max": self._largest if count else None,
        }
