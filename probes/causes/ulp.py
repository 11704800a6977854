"""How far two rows lie apart, element by element, in units in the last place of the format they are held in."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def ulp_histogram(left: NDArray[np.integer[Any]], right: NDArray[np.integer[Any]]) -> list[dict[str, int]]:
    """Elements by distance of two rows given as raw bits (int32 for fp32, int16 for bf16).

    Bins are 0, 1, 2 to 3, 4 to 7, and so on: ``{"low", "high", "count"}``, empty ones left out. The distance counts
    the representable numbers between two values; +0 and -0 are one apart, because their bits differ.
    """
    distance = np.abs(_ordered(left) - _ordered(right))
    exponents = np.frexp(distance.astype(np.float64))[1]  # 0 for 0, k for 2**(k-1) to 2**k - 1: exact below 2**53.
    bins, counts = np.unique(exponents, return_counts=True)
    return [
        {"low": 2 ** (k - 1) if k else 0, "high": 2**k - 1, "count": count}
        for k, count in zip(bins.tolist(), counts.tolist(), strict=True)
    ]


def _ordered(bits: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    """Integers in the order of the floats: a negative float's pattern grows away from zero."""
    magnitude = int(np.iinfo(bits.dtype).max)
    wide = bits.astype(np.int64)
    return np.where(wide >= 0, wide, -1 - (wide & magnitude))
