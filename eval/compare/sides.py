"""One run as a comparison needs it: a few digests and the verdict of each cell; its texts stay in the file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from detharness.errors import UsageError
from detharness.eval.grade.verdicts import GRADED
from detharness.eval.records import Cell, Generation
from detharness.eval.runs import Damage, Ledger, Place, Run
from detharness.records.digests import sha256_value

_NO_ANSWER = frozenset({"no_answer", "ambiguous"})


@dataclass(frozen=True)
class Judged:
    """The verdict on a cell and the answer it rests on."""

    verdict: str
    extracted: str | int | None

    @property
    def correct(self) -> bool | None:
        """None where there is no verdict that counts."""
        return self.verdict == "correct" if self.verdict in GRADED else None

    def same_answer(self, other: Judged) -> bool | None:
        """Whether both gave one answer, or both none; None where it is not known what one of them answered."""
        known = all(side.extracted is not None or side.verdict in _NO_ANSWER for side in (self, other))
        return (
            (self.verdict in _NO_ANSWER, self.extracted) == (other.verdict in _NO_ANSWER, other.extracted)
            if known
            else None
        )


@dataclass(frozen=True)
class Side:
    """One answered cell of one run.

    text: digest of text, reasoning and finish reason. tokens, logprob_bits: digests, None where the target told none.
    """

    place: Place
    row_digest: str
    request: Mapping[str, Any]
    text: str
    tokens: str | None
    logprob_bits: str | None
    judged: Judged

    def judged_as(self, judged: Judged) -> Side:
        """This side under another verdict."""
        return replace(self, judged=judged)


@dataclass
class Rows:
    """Rows per step while a run's replies were made: least, most, and the sum of the means over ``cells``."""

    cells: int = 0
    least: int | None = None
    most: int | None = None
    total: float = 0.0

    def add(self, batch: Mapping[str, Any] | None) -> None:
        """Enter one record's batch."""
        if batch is not None:
            self.cells += 1
            self.total += batch["mean"]
            self.least = batch["min"] if self.least is None else min(self.least, batch["min"])
            self.most = batch["max"] if self.most is None else max(self.most, batch["max"])

    def as_row(self) -> dict[str, Any] | None:
        """Plain JSON; None where no record says how many rows a step had."""
        if not self.cells:
            return None
        return {"min": self.least, "max": self.most, "mean": self.total / self.cells}


@dataclass(frozen=True)
class RunSides:
    """The answered cells of ``run``, its ``ledger``, and its rows per step."""

    run: Run
    ledger: Ledger
    cells: Mapping[Cell, Side]
    rows: Rows


def read_sides(run: Run, verdicts: Mapping[Cell, Judged]) -> RunSides:
    """Reduce ``run`` to its sides. Reads a line at a time.

    UsageError if a cell has two different answers, or an answer that ``verdicts`` does not hold.
    """
    ledger = Ledger(run)
    cells: dict[Cell, Side] = {}
    rows = Rows()
    damages: list[Damage] = []
    for attempt in run.attempts(damages):
        if ledger.take(attempt):
            generation = attempt.generation
            if generation.cell not in verdicts:
                where = f"{run.folder / attempt.place.file}, line {attempt.place.line}"
                raise UsageError(f"{where}: the grade has no verdict on this answer: run eval grade again")
            cells[generation.cell] = _side(generation, attempt.place, verdicts[generation.cell])
            rows.add(generation.batch)
    ledger.refuse_conflicts()
    return RunSides(run, ledger, cells, rows)


def _side(generation: Generation, place: Place, judged: Judged) -> Side:
    output = generation.output
    assert output is not None  # The ledger takes an answer for one only when it holds an output.
    return Side(
        place=place,
        row_digest=generation.row_digest,
        request=generation.request,
        text=sha256_value([output.text, output.reasoning, output.finish_reason]),
        tokens=None if output.token_ids is None else sha256_value(list(output.token_ids)),
        logprob_bits=output.logprob_bits_digest,
        judged=judged,
    )
