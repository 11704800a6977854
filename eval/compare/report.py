"""compare.json: two runs cell by cell, what their scores' difference is made of, and the sentences that say so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from detharness.errors import UsageError
from detharness.eval.compare.levels import LEVELS, cause_of, kind_of, same_on, same_output
from detharness.eval.compare.score import Score, score_of
from detharness.eval.compare.sides import Judged, RunSides, Side
from detharness.eval.differences import Difference, first_difference
from detharness.eval.records import Cell, Output

SCHEMA = "detharness.comparison/1"


@dataclass(frozen=True)
class Graded:
    """A run's sides and the grade that its verdicts are from.

    fingerprint: of the grader. complete: whether every cell has one graded record. stored: whether the grade was there,
    or made for this comparison.
    """

    sides: RunSides
    fingerprint: Any
    complete: bool
    stored: bool

    def output(self, cell: Cell) -> Output:
        """The output of an answered cell, read from the file again."""
        output = self.sides.run.read(self.sides.cells[cell].place).output
        assert output is not None  # An answer has one.
        return output


@dataclass(frozen=True)
class Pair:
    """One cell that both runs answered. ``difference``: None when the outputs are the same."""

    kind: str
    cause: str | None
    difference: Difference | None


@dataclass(frozen=True)
class Comparison:
    """``pairs``: sorted by cell. ``report``: compare.json."""

    a: Graded
    b: Graded
    pairs: Mapping[Cell, Pair]
    score: Score | None
    report: Mapping[str, Any]

    @property
    def same(self) -> bool:
        """Whether both runs answered the same cells, each with the same output."""
        return self.report["verdict"] in ("same", "logprobs_moved")


@dataclass(frozen=True)
class Regraded:
    """A's cells judged once more, the null control; or why that cannot be done from what the run holds."""

    verdicts: Mapping[Cell, Judged] | None
    reason: str | None


def compare_runs(a: Graded, b: Graded, regraded: Regraded) -> Comparison:
    """Compare two runs of one task.


    UsageError for runs of different tasks, or without a cell in common.
    """
    tasks = a.sides.run.task, b.sides.run.task
    if tasks[0] != tasks[1]:
        raise UsageError(
            f"the first run is of the task {tasks[0]!r} and the second of {tasks[1]!r}: compare like with like"
        )
    cells_a, cells_b = a.sides.cells, b.sides.cells
    common = sorted(cells_a.keys() & cells_b.keys())
    if not common:
        raise UsageError("the runs have no answered cell in common: there is nothing to compare")
    pairs = {}
    for cell in common:
        side_a, side_b = cells_a[cell], cells_b[cell]
        difference = None if same_output(side_a, side_b) else first_difference(a.output(cell), b.output(cell))
        pairs[cell] = Pair(kind_of(side_a, side_b), cause_of(side_a, side_b), difference)
    levels = _levels(cells_a, cells_b, common)
    score = score_of(cells_a, cells_b, complete=a.complete and b.complete)
    only = {"only_a": len(cells_a.keys() - cells_b.keys()), "only_b": len(cells_b.keys() - cells_a.keys())}
    report = {
        "schema": SCHEMA,
        "task": tasks[0],
        "verdict": _verdict(pairs, levels, only, score),
        "runs": {"a": _run_row(a), "b": _run_row(b)},
        "graders_comparable": a.fingerprint == b.fingerprint,
        "cells": {"common": len(common), **only},
        "levels": levels,
        "readings": {
            "raw_text": "moved" if levels["text"]["different"] else "same",
            "extracted_answer": "moved" if levels["answer"]["different"] else "same",
        },
        "causes": dict(sorted(Counter(pair.cause for pair in pairs.values() if pair.cause is not None).items())),
        "score": None if score is None else score.as_row(),
        "null_control": _null_control(cells_a, regraded),
        "differing_cells": [_cell_row(cell, pair, cells_a, cells_b) for cell, pair in pairs.items() if _is_told(pair)],
    }
    return Comparison(a, b, pairs, score, report)


def _levels(a: Mapping[Cell, Side], b: Mapping[Cell, Side], common: list[Cell]) -> dict[str, dict[str, int]]:
    words = {True: "same", False: "different", None: "unknown"}
    levels = {}
    for level in LEVELS:
        counts = Counter(words[same_on(level, a[cell], b[cell])] for cell in common)
        levels[str(level)] = {word: counts[word] for word in words.values()}
    return levels


def _verdict(
    pairs: Mapping[Cell, Pair], levels: Mapping[str, Mapping[str, int]], only: Mapping[str, int], score: Score | None
) -> str:
    if any(pair.difference is not None for pair in pairs.values()):
        if score is None:
            return "outputs_moved"
        return "score_moved" if score.difference else "score_equal_outputs_moved"
    if any(only.values()):
        return "cells_differ"
    return "logprobs_moved" if levels["logprob_bits"]["different"] else "same"


def _run_row(graded: Graded) -> dict[str, Any]:
    sides = graded.sides
    return {
        "generation_root": sides.ledger.root,
        "samples": sides.run.samples,
        "tasks": len(sides.run.tasks),
        "answered": len(sides.cells),
        "coverage_complete": graded.complete,
        "grader_fingerprint": graded.fingerprint,
        "grade": "stored" if graded.stored else "made_now",
        "rows_per_step": sides.rows.as_row(),
    }


def _null_control(cells: Mapping[Cell, Side], regraded: Regraded) -> dict[str, Any]:
    """A against A graded again, over the cells with a verdict that counts: nothing may move."""
    counted = {cell: side for cell, side in cells.items() if side.judged.correct is not None}
    row: dict[str, Any] = {"cells": len(counted), "reason": regraded.reason}
    if regraded.verdicts is None:
        return {**row, "holds": None, "verdicts_moved": [], "difference": None}
    again = {cell: side.judged_as(regraded.verdicts[cell]) for cell, side in counted.items()}
    moved = [list(cell) for cell in sorted(counted) if again[cell].judged != counted[cell].judged]
    score = score_of(counted, again, complete=False)
    difference = None if score is None else float(score.difference)
    return {**row, "holds": not moved, "verdicts_moved": moved, "difference": difference}


def _is_told(pair: Pair) -> bool:
    return pair.difference is not None or pair.kind in ("flipped", "logprobs") or pair.cause is not None


def _cell_row(cell: Cell, pair: Pair, a: Mapping[Cell, Side], b: Mapping[Cell, Side]) -> dict[str, Any]:
    return {
        "task_id": cell[0],
        "sample_index": cell[1],
        "kind": pair.kind,
        "cause": pair.cause,
        "verdicts": [side[cell].judged.verdict for side in (a, b)],
        "extracted": [side[cell].judged.extracted for side in (a, b)],
        "first_difference": None if pair.difference is None else pair.difference.as_row(),
    }
