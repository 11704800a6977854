"""A finished grade, read again: its report and the verdict of each cell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from detharness.errors import UsageError
from detharness.eval.grade.verdicts import VERDICTS, Name, Verdict
from detharness.eval.records import Cell
from detharness.records.canonical import read_json
from detharness.records.jsonl import read_jsonl
from detharness.records.run_folder import REPORT

GRADE = "grade"  # The folder of a run's grade, unless another is named.

_NAMES = frozenset(get_args(Name))
_TYPES: dict[str, Any] = {
    "task_id": str,
    "sample_index": int,
    "modality": str,
    "extracted": str | int | None,
    "flags": list,
    "output_digest": str | None,
    "attempts": int,
    "confidence": int | None,
    "judge_confidence": int | None,
}


@dataclass(frozen=True)
class StoredGrade:
    """What ``eval grade`` left in ``folder``. root: over the outputs that it graded. fingerprint: of the grader."""

    folder: Path
    report: Mapping[str, Any]
    verdicts: Mapping[Cell, Verdict]
    root: str
    fingerprint: Mapping[str, Any]
    complete: bool


def find_grade(run: Path, name: str) -> StoredGrade | None:
    """The grade that lies in the folder ``name`` of a run's folder; None where none was ever finished there."""
    folder = run / name
    return read_grade(folder) if (folder / REPORT).is_file() else None


def read_grade(folder: Path) -> StoredGrade:
    """Read the grade in ``folder``; UsageError names the file, line and field that does not fit."""
    if not (folder / REPORT).is_file():
        raise UsageError(f"{folder} holds no grade: name the folder that eval grade wrote")
    report = read_json(folder / REPORT)
    if not isinstance(report, dict):
        raise UsageError(f"{folder / REPORT} must hold a JSON object: it is no report of eval grade")
    for name, kind in {"generation_root": str, "grader_fingerprint": dict, "coverage_complete": bool}.items():
        if not isinstance(report.get(name), kind):
            raise UsageError(
                f"{folder / REPORT}: the field {name!r} is missing or damaged: it is no report of eval grade"
            )
    verdicts: dict[Cell, Verdict] = {}
    path = folder / f"{VERDICTS}.jsonl"
    for row in read_jsonl(path):
        verdict = _verdict_of(row.value, f"{path}, line {row.line}")
        if verdict.cell in verdicts:
            raise UsageError(f"{path}, line {row.line}: the cell has a verdict above already: run eval grade again")
        verdicts[verdict.cell] = verdict
    return StoredGrade(
        folder=folder,
        report=report,
        verdicts=verdicts,
        root=report["generation_root"],
        fingerprint=report["grader_fingerprint"],
        complete=report["coverage_complete"],
    )


def _verdict_of(row: Mapping[str, Any], where: str) -> Verdict:
    for name, kind in _TYPES.items():
        if name not in row or not isinstance(row[name], kind) or isinstance(row[name], bool):
            raise UsageError(f"{where}: the field {name!r} is missing or of another type: run eval grade again")
    if not isinstance(row.get("verdict"), str) or row["verdict"] not in _NAMES:
        raise UsageError(f"{where}: {row.get('verdict')!r} is no verdict: run eval grade again")
    fields = {name: row[name] for name in _TYPES}
    return Verdict(**{**fields, "verdict": row["verdict"], "flags": tuple(row["flags"])})
