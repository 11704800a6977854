"""Asking some cells again: the same request to the same target must give the same output."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from detharness.eval.differences import Difference, first_difference
from detharness.eval.records import Cell, Generation, Output
from detharness.records.digests import sha256_value
from detharness.targets.generation import GenerationError

Ask = Callable[[Generation], Awaitable[Output]]
"""Sends a record's own request again. Raises ``GenerationError`` where there is no reply."""


@dataclass(frozen=True)
class Regenerated:
    """One cell, asked again.

    outcome: "identical", "moved" (``difference`` says where), or "failed" (``error`` says why: not tested). Token ids
    are compared where both outputs have them, text, reasoning and finish reason always. logprob_bits: "same",
    "different", or "unknown" where one of the two does not tell; they do not decide the outcome.
    """

    cell: Cell
    outcome: Literal["identical", "moved", "failed"]
    difference: Difference | None
    logprob_bits: Literal["same", "different", "unknown"]
    error: str | None

    def as_row(self) -> dict[str, Any]:
        """Plain JSON."""
        return {
            "task_id": self.cell[0],
            "sample_index": self.cell[1],
            "outcome": self.outcome,
            "first_difference": None if self.difference is None else self.difference.as_row(),
            "logprob_bits": self.logprob_bits,
            "error": self.error,
        }


def choose_cells(cells: Iterable[Cell], count: int, seed: int) -> list[Cell]:
    """``count`` of ``cells`` (all, if there are no more), drawn by a hash of seed and cell, whatever their order."""
    drawn = sorted(cells, key=lambda cell: (sha256_value([seed, *cell]), cell))[:count]
    return sorted(drawn)


async def regenerate(
    records: Sequence[Generation], ask: Ask, *, concurrency: int, done: Callable[[str], None]
) -> list[Regenerated]:
    """Ask each of ``records`` again, ``concurrency`` at once; the results stand in their order. ``done`` after each."""
    free = asyncio.Semaphore(concurrency)

    async def again(record: Generation) -> Regenerated:
        async with free:
            try:
                output = await ask(record)
            except GenerationError as error:
                result = Regenerated(record.cell, "failed", None, "unknown", f"{error.kind}: {error}")
            else:
                result = _compared(record, output)
        done(result.outcome)
        return result

    return list(await asyncio.gather(*(again(record) for record in records)))


def _compared(record: Generation, now: Output) -> Regenerated:
    assert record.output is not None  # Only answered cells are chosen.
    difference = first_difference(record.output, now)
    bits = record.output.logprob_bits_digest, now.logprob_bits_digest
    same_bits: Literal["same", "different", "unknown"] = "unknown"
    if None not in bits:
        same_bits = "same" if bits[0] == bits[1] else "different"
    outcome: Literal["identical", "moved"] = "identical" if difference is None else "moved"
    return Regenerated(record.cell, outcome, difference, same_bits, None)
