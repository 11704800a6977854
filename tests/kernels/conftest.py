"""Both kernel sets, the check that a row operator is row-pure, and the accuracy bound.

``impurities`` is one function for either set: ours must come back empty, the library default must not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest
import torch
from torch import Tensor

from detharness.kernels.library import LibraryKernels
from detharness.kernels.pytorch import RowPureKernels
from detharness.kernels.threads import intraop_threads

ROWS = 70  # Past the largest tile, with a rest.
HOSTILE = (float("nan"), float("inf"), float("-inf"), 1e38)

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
    with intraop_threads(1):
        expected = operator(rows)
        found = _moved_by_rows(operator, rows, expected) | _moved_by_memory(operator, rows, expected)
    for count in (1, 2):
        with intraop_threads(count):
            if not (_same_bits(operator(rows), expected) and _same_bits(operator(rows[:3].clone()), expected[:3])):
                found.add("threads")
    return found


def _moved_by_rows(operator: Operator, rows: Tensor, expected: Tensor) -> set[str]:
    found = set()

    def compare(axis: str, actual: Tensor, wanted: Tensor) -> None:
        if not _same_bits(actual, wanted):
            found.add(axis)

    for count in range(1, ROWS + 1):
        compare("batch size", operator(rows[:count].clone()), expected[:count])
    for shift in range(1, ROWS):
        compare("slot", operator(rows.roll(shift, 0)), expected.roll(shift, 0))
    for slot in range(ROWS):
        batch = torch.full_like(rows, HOSTILE[slot % len(HOSTILE)])
        batch[slot] = rows[slot]
        compare("neighbours", operator(batch)[slot], expected[slot])
    return found


def _moved_by_memory(operator: Operator, rows: Tensor, expected: Tensor) -> set[str]:
    moved = False

    def compare(actual: Tensor, wanted: Tensor) -> None:
        nonlocal moved
        moved |= not _same_bits(actual, wanted)

    flat = torch.empty(rows.numel() + 8, dtype=rows.dtype)
    for offset in range(1, 8):
        shifted = flat[offset : offset + rows.numel()].view(rows.shape)
        shifted.copy_(rows)
        compare(operator(shifted), expected)
        compare(operator(rows[offset:]), expected[offset:])
    wide = torch.full((ROWS, rows.shape[1] + 3), float("nan"), dtype=rows.dtype)
    wide[:, 1:-2] = rows
    compare(operator(wide[:, 1:-2]), expected)
    compare(operator(rows.T.contiguous().T), expected)
    compare(operator(rows[::2]), expected[::2])
    return {"memory"} if moved else set()


@pytest.fixture(scope="session")
def impurities() -> Callable[[Operator, Tensor], set[str]]:
    return _impurities


def _at_most_twice(actual: Tensor, library: Tensor, exact: Tensor) -> None:
    """rms and max error of ``actual`` against ``exact`` (fp64) at most twice those of ``library`` in the same dtype.

    For bf16 both sides accumulate in fp32 and round once, so that rounding dominates both errors and no wider bound is
    needed.
    """
    assert actual.dtype == library.dtype
    assert torch.isfinite(actual).all()
    mine, theirs = ((values.double() - exact).abs() for values in (actual, library))
    assert mine.square().mean().sqrt() <= 2 * theirs.square().mean().sqrt()
    assert mine.max() <= 2 * theirs.max()


@pytest.fixture(scope="session")
def at_most_twice() -> Callable[[Tensor, Tensor, Tensor], None]:
    return _at_most_twice


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """The thread axis is played on purpose; the rest needs no pool that waits for busy cores."""
    with intraop_threads(1):
        yield
