"""Row tiles: matrix products run in a few fixed shapes only, and a bit probe of this host proves each before use.

A library picks its order of additions from the shape it is given. So rows are cut into tiles of fixed sizes, the last
one zero-padded, and no other shape is ever handed to the library. What remains to be known about a tile size is finite
and is probed on this host: a row gives the same bits in every slot, beside any neighbours (NaN, infinite, huge), under
every thread count, and under every tile size of the schedule. Sizes that disagree are dropped; if none is pure, the
kernel refuses to run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from detharness.errors import KernelError
from detharness.kernels.contract import Schedule

CANDIDATE_TILES = (4, 8, 16, 32, 64)
HOSTILE = (float("nan"), float("inf"), float("-inf"), 1e38)

Product = Callable[[Tensor], Tensor]
"""One tile [T, K] -> [T, N] at exactly that shape."""


@dataclass(frozen=True)
class TileProbe:
    """What the probe of one product found on this host; it belongs in a report."""

    product: str
    kept: tuple[int, ...]
    dropped: tuple[int, ...]
    threads: int


def probe_tiles(name: str, product: Product, width: int) -> tuple[Schedule, TileProbe]:
    """Return the tile sizes under which ``product`` is row-pure on this host; KernelError when there is none.

    The reference is the largest size that is pure by itself; the others must give its bits.
    """
    rows = torch.randn(CANDIDATE_TILES[-1], width, generator=torch.Generator().manual_seed(20260101))
    kept: list[int] = []
    reference: Tensor | None = None
    for size in reversed(CANDIDATE_TILES):
        result = _by_tiles(product, rows, size)
        if not _pure(product, rows, size, result):
            continue
        if reference is None:
            reference = result
        if torch.equal(reference, result):
            kept.insert(0, size)
    if not kept:
        raise KernelError(
            f"{name}: no row tile of {CANDIDATE_TILES} gives the same bits in every slot on this host, "
            "so the invariant kernels cannot run here; use --kernels torch"
        )
    dropped = tuple(size for size in CANDIDATE_TILES if size not in kept)
    return Schedule(tuple(kept)), TileProbe(name, tuple(kept), dropped, torch.get_num_threads())


def _by_tiles(product: Product, rows: Tensor, size: int) -> Tensor:
    return torch.cat([product(rows[start : start + size].clone()) for start in range(0, len(rows), size)])


def _pure(product: Product, rows: Tensor, size: int, expected: Tensor) -> bool:
    # Rolling by one compares every slot with its neighbour; reversing catches a fault that is symmetric to it.
    for order in (torch.arange(len(rows)).roll(1), torch.arange(len(rows)).flip(0)):
        if not torch.equal(_by_tiles(product, rows[order], size), expected[order]):
            return False
    for slot in {0, size // 2, size - 1}:
        for hostile in HOSTILE:
            tile = torch.full_like(rows[:size], hostile)
            tile[slot] = rows[slot]
            if not torch.equal(product(tile)[slot], expected[slot]):
                return False
    for threads in range(1, torch.get_num_threads() + 1):
        with _threads(threads):
            if not torch.equal(_by_tiles(product, rows, size), expected):
                return False
    return True


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def cut(rows: int, schedule: Schedule) -> list[tuple[int, int, int]]:
    """Cut ``rows`` into (start, filled, tile size); only the last tile may be partly filled.

    Takes the smallest tile that holds the rest if more than half of it is filled, else the largest that is full.
    """
    pieces: list[tuple[int, int, int]] = []
    start = 0
    while start < rows:
        left = rows - start
        fitting = [size for size in schedule.row_tiles if size >= left]
        full = [size for size in schedule.row_tiles if size <= left]
        size = fitting[0] if fitting and (2 * left > fitting[0] or not full) else full[-1]
        filled = min(left, size)
        pieces.append((start, filled, size))
        start += filled
    return pieces
