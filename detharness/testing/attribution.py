"""Which axes move a row: the fewest that do, found by putting one after the other back. No torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace

from detharness.testing.batches import AXES, Batch


def fewest_axes(
    needle: Batch, reference: Batch, counts: Sequence[int], moves: Callable[[Batch], bool]
) -> tuple[Batch, tuple[str, ...]]:
    """A simpler batch that still moves the row, and the axes in which it differs from ``reference``.

    ``counts`` are the row counts that may be tried, ascending. No axis is named where ``reference`` moves by itself.
    """
    if moves(reference):
        return needle, ()
    for axis in reversed(AXES):
        back = {**asdict(needle), axis: getattr(reference, axis)}
        if back["slot"] < back["rows"] and Batch(**back) != needle and moves(Batch(**back)):
            needle = Batch(**back)
    for rows in counts if needle.rows != reference.rows else ():
        if needle.slot < rows < needle.rows and moves(replace(needle, rows=rows)):
            needle = replace(needle, rows=rows)
            break
    axes = {axis for axis in AXES if getattr(needle, axis) != getattr(reference, axis)}
    if reference.rows == 1 < needle.rows and not moves(replace(needle, neighbours="copies")):
        axes.add("neighbours")  # Among its copies the row meets their number and not what others hold.
    if axes & {"slot", "neighbours"}:
        axes.discard("rows")  # Both need other rows, whose number is named where it alone moves the row.
    return needle, tuple(axis for axis in AXES if axis in axes)
