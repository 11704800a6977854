"""Row tiles: matrix products run in a few fixed shapes only, and a bit probe of this host proves each before use.

A library picks its order of additions from the shape it is given. So rows are cut into tiles of fixed sizes, the last
one zero-padded, and no other shape is ever handed to the library. What remains to be known about a tile size is finite
and is probed on this host: a row gives the same bits in every slot, beside any neighbours (NaN, infinite, huge), under
several thread counts, and under every tile size of the schedule. Sizes that disagree are dropped; if none is pure, the
kernel refuses to run. It also refuses settings of torch that were not probed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from detharness.errors import KernelError
from detharness.kernels.contract import Schedule
from detharness.kernels.threads import intraop_threads

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
    threads: tuple[int, ...]

    @property
    def schedule(self) -> Schedule:
        """The sizes kept."""
        return Schedule(self.kept)

    def check_settings(self) -> None:
        """KernelError when torch runs with other settings than the probe saw: threads, fp32 precision, autocast."""
        count = torch.get_num_threads()
        if count not in self.threads:
            raise KernelError(
                f"{self.product} was probed with {self.threads} threads, and torch now runs {count}: "
                "set torch's threads to one of these, or to their final number before the model is loaded"
            )
        check_precision(self.product)


def check_precision(product: str) -> None:
    """KernelError when torch may multiply fp32 matrices in a narrower type: the process can switch that at any time."""
    precision = torch.backends.mkldnn.matmul.fp32_precision  # type: ignore[attr-defined]  # Added at import.
    if precision not in ("none", "ieee"):
        raise KernelError(
            f"{product}: torch is set to multiply fp32 matrices in {precision}; "
            "call torch.set_float32_matmul_precision('highest') before the invariant kernels run"
        )
    if torch.is_autocast_enabled("cpu"):
        raise KernelError(f"{product}: the invariant kernels do not run under torch.autocast; leave that context")


def probe_tiles(name: str, product: Product, width: int) -> TileProbe:
    """Find the tile sizes under which ``product`` is row-pure on this host; KernelError when there is none.

    The reference is the largest size that is pure by itself; the others must give its bits.
    """
    check_precision(name)
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
        raise _refusal(name, f"no row tile of {CANDIDATE_TILES} gives the same bits in every slot")
    dropped = tuple(size for size in CANDIDATE_TILES if size not in kept)
    return TileProbe(name, tuple(kept), dropped, thread_counts())


def shared_schedule(name: str, schedules: Sequence[Schedule]) -> Schedule:
    """Return the tile sizes that all ``schedules`` allow; KernelError when there is none."""
    shared = tuple(size for size in CANDIDATE_TILES if all(size in schedule.row_tiles for schedule in schedules))
    if not shared:
        raise _refusal(name, "its parts share no row tile that gives the same bits in every slot")
    return Schedule(shared)


def _refusal(name: str, finding: str) -> KernelError:
    return KernelError(f"{name}: {finding} on this host, so the invariant kernels cannot run here; use --kernels torch")


def thread_counts() -> tuple[int, ...]:
    """The thread counts a probe plays: 1, 2, 4, ... up to what this process may use, that number, and torch's own."""
    most = max(2, len(os.sched_getaffinity(0)), torch.get_num_threads())
    powers = (1 << power for power in range(most.bit_length()))
    return tuple(sorted({*powers, most, torch.get_num_threads()}))


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
    # For any two slots, one is hostile and the other is not in some tile: no leak from slot to slot is missed.
    slots = torch.arange(size)
    cycle = torch.tensor(HOSTILE)[slots % len(HOSTILE), None]
    for bit in range(size.bit_length() - 1):
        for side in (0, 1):
            foul = (slots >> bit) % 2 == side
            tile = torch.where(foul[:, None], cycle, rows[:size])
            if not torch.equal(product(tile)[~foul], expected[:size][~foul]):
                return False
    for threads in thread_counts():
        with intraop_threads(threads):
            if not torch.equal(_by_tiles(product, rows, size), expected):
                return False
    return True


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
