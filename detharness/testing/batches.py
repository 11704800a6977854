"""How a row stands in a batch, as data: what may not be read by the arithmetic. No torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from detharness.errors import UsageError

AXES = ("rows", "slot", "neighbours", "layout", "threads")
NEIGHBOURS = ("nan", "inf", "-inf", "max", "subnormal")
# Offsets of 1, 2, 4 and 8 elements leave every power of two below a cache line as the widest alignment.
LAYOUTS = ("offset 1", "offset 2", "offset 4", "offset 8", "apart", "every other", "column major")
MOST = 129


@dataclass(frozen=True, kw_only=True)
class Batch:
    """One arrangement of rows.

    rows: how many the call has. row: the one that is looked at, which stands in ``slot``. neighbours: "own" are the
    other rows that were given, in order and from the start again when they run out; "copies" are copies of the row;
    "nan", "inf", "-inf", "max" (the largest finite) and "subnormal" fill every other row of floating-point inputs with
    that value. layout: where the input stands in memory, "packed" or one of ``LAYOUTS`` ("offset N" for any N: that
    many elements past an aligned address). threads: torch's intra-op threads during the call.
    """

    rows: int = 1
    row: int = 0
    slot: int = 0
    neighbours: str = "own"
    layout: str = "packed"
    threads: int = 1

    def __post_init__(self) -> None:
        if self.rows < 1 or self.threads < 1 or not 0 <= self.slot < self.rows or self.row < 0:
            raise UsageError(f"{self!r} cannot be: rows and threads are at least 1, slots and rows count from 0")
        _one_of("neighbours", self.neighbours, ("own", "copies", *NEIGHBOURS))
        kind, _, count = self.layout.partition(" ")
        if not (kind == "offset" and count.isdecimal()):
            _one_of("layout", self.layout, ("packed", *LAYOUTS))

    def __str__(self) -> str:
        return (
            f"slot {self.slot} of {self.rows} row{'s' * (self.rows > 1)}, neighbours {self.neighbours}, "
            f"layout {self.layout}, {self.threads} thread{'s' * (self.threads > 1)}"
        )


def _one_of(what: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise UsageError(f"unknown {what} {value!r}: use {', '.join(map(repr, known))}")


def row_counts(*, most: int = MOST, thresholds: Sequence[int] = ()) -> tuple[int, ...]:
    """Row counts at borders, ascending: powers of two and ``thresholds`` (where a kernel dispatches), each ±1.

    None is larger than ``most``, but those around a threshold.
    """
    if most < 1 or any(threshold < 1 for threshold in thresholds):
        raise UsageError(f"row counts start at 1: most={most}, thresholds={tuple(thresholds)}")
    powers = [1 << power for power in range(most.bit_length() + 1)]
    counts = {count for power in powers for count in _around(power) if count <= most}
    return tuple(sorted(counts.union(*map(_around, thresholds))))


def _around(border: int) -> tuple[int, ...]:
    return tuple(count for count in (border - 1, border, border + 1) if count)


def every_batch(
    *,
    rows: Sequence[int] | None = None,
    neighbours: Sequence[str] = NEIGHBOURS,
    layouts: Sequence[str] = LAYOUTS,
    threads: Sequence[int] = (2, 3),
) -> Iterator[Batch]:
    """Every row count of ``rows`` (default: ``row_counts()``), one axis at a time.

    The row stands first, in the middle and last; among each of ``neighbours``; in each of ``layouts``; under each
    number of ``threads``.
    """
    counts = row_counts() if rows is None else rows
    for count in counts:
        yield from (Batch(rows=count, slot=slot) for slot in _slots(count))
    for count in counts:
        for slot in _slots(count) if count > 1 else ():
            yield from (Batch(rows=count, row=slot, slot=slot, neighbours=kind) for kind in neighbours)
    for count in counts:
        yield from (Batch(rows=count, layout=layout) for layout in layouts)
        yield from (Batch(rows=count, threads=number) for number in threads)


def _slots(rows: int) -> list[int]:
    return sorted({0, rows // 2, rows - 1})
