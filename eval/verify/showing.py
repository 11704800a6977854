"""One reply, whole."""

from __future__ import annotations

from detharness.errors import UsageError
from detharness.eval.records import Cell, Generation
from detharness.eval.runs import Damage, Run


def parse_cell(text: str, run: Run) -> Cell:
    """TASK:SAMPLE -> the cell; the id may hold colons. UsageError for what is no cell of ``run``."""
    task_id, colon, sample = text.rpartition(":")
    if not colon or not (sample.isascii() and sample.isdecimal() and len(sample) < 10):
        raise UsageError(f"--show {text!r}: write TASK:SAMPLE, as in {run.tasks[0].task_id}:0")
    if task_id not in run.rows:
        raise UsageError(f"--show {text!r}: the run has no task {task_id!r}; its ids are in tasks.jsonl")
    if int(sample) >= run.samples:
        raise UsageError(f"--show {text!r}: the run has {run.samples} samples a task, counted from 0")
    return task_id, int(sample)


def records_of(run: Run, cell: Cell) -> list[tuple[str, Generation]]:
    """(place, record) of every attempt at ``cell``, in file order; UsageError when there is none."""
    damages: list[Damage] = []
    found = [
        (str(attempt.place), attempt.generation) for attempt in run.attempts(damages) if attempt.generation.cell == cell
    ]
    if not found:
        lost = f" ({len(damages)} damaged lines may have held it)" if damages else ""
        raise UsageError(f"task {cell[0]!r}, sample {cell[1]}, was never answered{lost}: resume the run to ask it")
    return found
