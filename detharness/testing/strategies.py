"""Hypothesis strategies for batches: what a kernel meets in a server, borders first."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from detharness.testing import batches as arrangements
from detharness.testing.batches import LAYOUTS, MOST, NEIGHBOURS, Batch

try:
    from hypothesis import strategies as st
    from hypothesis.strategies import SearchStrategy
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "detharness.testing.strategies needs Hypothesis: pip install 'detharness[testing]'", name=error.name
    ) from None

__all__ = ["batches", "dtypes", "layouts", "lengths", "neighbours", "row_counts"]


def row_counts(*, most: int = MOST, thresholds: Sequence[int] = ()) -> SearchStrategy[int]:
    """Row counts, half of them at borders: powers of two and ``thresholds``, each ±1. Shrinks towards 1."""
    borders = arrangements.row_counts(most=most, thresholds=thresholds)
    return st.integers(1, borders[-1]) | st.sampled_from(borders)


def lengths(*, most: int = 257, thresholds: Sequence[int] = (), sequences: int = 8) -> SearchStrategy[list[int]]:
    """Ragged lengths of 2 to ``sequences`` requests, not all equal, half of them at borders."""
    several = st.lists(row_counts(most=most, thresholds=thresholds), min_size=2, max_size=sequences)
    return several.filter(lambda drawn: len(set(drawn)) > 1)


def neighbours() -> SearchStrategy[str]:
    """What the other rows hold: their own values, NaN, infinities, the largest finite value, or subnormals."""
    return st.sampled_from(("own", *NEIGHBOURS))


def layouts() -> SearchStrategy[str]:
    """Where an input stands in memory: packed, misaligned by some elements, or not contiguous."""
    return st.sampled_from(("packed", *LAYOUTS)) | st.integers(1, 15).map(lambda offset: f"offset {offset}")


def dtypes() -> SearchStrategy[torch.dtype]:
    """The floating-point dtypes of activations: fp32, bf16, fp16."""
    return st.sampled_from((torch.float32, torch.bfloat16, torch.float16))


def batches(
    *,
    most: int = MOST,
    thresholds: Sequence[int] = (),
    neighbours: Sequence[str] = ("own", *NEIGHBOURS),
    layouts: Sequence[str] = ("packed", *LAYOUTS),
    threads: Sequence[int] = (1, 2),
) -> SearchStrategy[Batch]:
    """Arrangements of a batch along every axis at once; shrinks towards one row and the first of each."""

    def of(rows: int) -> SearchStrategy[Batch]:
        return st.builds(
            Batch,
            rows=st.just(rows),
            row=st.integers(0, 15),
            slot=st.integers(0, rows - 1) | st.sampled_from((0, rows // 2, rows - 1)),
            neighbours=st.sampled_from(neighbours),
            layout=st.sampled_from(layouts),
            threads=st.sampled_from(threads),
        )

    return row_counts(most=most, thresholds=thresholds).flatmap(of)
