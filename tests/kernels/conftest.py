"""Both kernel sets, the check that a row operator is row-pure, and the accuracy bound.

``impurities`` is one function for either set: ours must come back empty, the library default must not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from detharness.kernels.library import LibraryKernels
from detharness.kernels.pytorch import RowPureKernels
from detharness.kernels.threads import intraop_threads
from detharness.testing import Batch, BitsMovedError, assert_accurate, assert_row_pure
from detharness.testing.batches import LAYOUTS, NEIGHBOURS

ROWS = 70  # Past the largest tile, with a rest.
FULL = Batch(rows=ROWS)
# A list per axis, so that one that moves hides no other.
BATCHES = (
    [Batch(rows=count) for count in range(1, ROWS + 1)],
    [replace(FULL, slot=slot) for slot in range(1, ROWS)],
    [replace(FULL, row=s, slot=s, neighbours=NEIGHBOURS[s % len(NEIGHBOURS)]) for s in range(ROWS)],
    [replace(FULL, layout=layout) for layout in (*LAYOUTS, *(f"offset {offset}" for offset in (3, 5, 6, 7)))],
    [Batch(rows=count, threads=2) for count in (3, ROWS)],
)

Operator = Callable[[Tensor], Tensor]


@pytest.fixture(scope="session")
def ours() -> RowPureKernels:
    return RowPureKernels()


@pytest.fixture(scope="session")
def library() -> LibraryKernels:
    return LibraryKernels()


def _same_bits(left: Tensor, right: Tensor) -> bool:
    """Equal as integers: unlike torch.equal, -0 is not 0 and NaN is itself."""
    integers = {2: torch.int16, 4: torch.int32, 8: torch.int64}[left.element_size()]
    same_kind = left.dtype == right.dtype and left.shape == right.shape
    return same_kind and torch.equal(left.contiguous().view(integers), right.contiguous().view(integers))


@pytest.fixture(scope="session")
def same_bits() -> Callable[[Tensor, Tensor], bool]:
    return _same_bits


@pytest.fixture(scope="session")
def threads() -> Callable[[int], AbstractContextManager[None]]:
    return intraop_threads


def _impurities(operator: Operator, rows: Tensor) -> set[str]:
    """The axes along which ``operator`` [M, K] -> [M, N] changes a bit of a row; ``rows`` is [70, K], finite."""
    assert rows.shape[0] == ROWS
    found: set[str] = set()
    for batches in BATCHES:
        try:
            assert_row_pure(lambda x: operator(x), rows={"x": rows}, batches=batches)
        except BitsMovedError as moved:
            found.update(moved.axes)
    return found


@pytest.fixture(scope="session")
def impurities() -> Callable[[Operator, Tensor], set[str]]:
    return _impurities


def _at_most_twice(actual: Tensor, library: Tensor, exact: Tensor) -> None:
    """rms and max error of ``actual`` against ``exact`` (fp64) at most twice those of ``library`` in the same dtype."""
    reason = "another order of additions may double the library's error; in bf16 the one rounding dominates both"
    assert_accurate(values=actual, reference=library, exact=exact, times=2, reason=reason)


@pytest.fixture(scope="session")
def at_most_twice() -> Callable[[Tensor, Tensor, Tensor], None]:
    return _at_most_twice


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """The thread axis is played on purpose; the rest needs no pool that waits for busy cores."""
    with intraop_threads(1):
        yield
