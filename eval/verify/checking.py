"""A run's files against themselves and against the grade that pinned them: what is damaged, moved or gone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from detharness.eval.grade.stored import StoredGrade
from detharness.eval.grade.verdicts import VERDICTS
from detharness.eval.records import Cell, root_of
from detharness.eval.runs import Attempt, Damage, Ledger, Run

SCHEMA = "detharness.verification/1"

Kind = Literal["damaged", "outdated", "conflict", "joined", "torn", "moved", "gone", "root"]


@dataclass(frozen=True)
class Finding:
    """One thing that does not hold.

    damaged: a record's content does not fit the digests beside it. outdated: it answers another data row or other
    messages than tasks.jsonl holds. conflict: two answers to one cell. joined, torn: a line that is not one whole
    record. moved: the output is not the one that was graded. gone: a graded cell without its record. root: the digest
    over all outputs is not the one that was pinned.
    """

    kind: Kind
    task_id: str | None
    sample_index: int | None
    where: str | None
    detail: str


@dataclass(frozen=True)
class Pinned:
    """What a grade holds on to: the output digest of each cell, and the root over them."""

    root: str
    digests: Mapping[Cell, str]


@dataclass(frozen=True)
class Verification:
    """``ledger``: the records that stand. ``root``: over the outputs as the file holds them now."""

    run: Run
    ledger: Ledger
    root: str
    pinned: Pinned | None
    added: int
    findings: tuple[Finding, ...]

    @property
    def holds(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    def as_report(self) -> dict[str, Any]:
        """Plain JSON, without clock or path: the same files give the same bytes."""
        return {
            "schema": SCHEMA,
            "task": self.run.task,
            "holds": self.holds,
            "generation_root": self.root,
            "graded_root": None if self.pinned is None else self.pinned.root,
            "cells": {
                "expected": len(self.run.tasks) * self.run.samples,
                "answered": len(self.ledger.answers),
                "errors": len(self.ledger.failures.keys() - self.ledger.answers.keys()),
                "added_since_graded": self.added,
                "extra": len(self.ledger.extra),
                "duplicates": self.ledger.duplicates,
            },
            "findings": [asdict(finding) for finding in self.findings],
        }


def pinned_by(grade: StoredGrade) -> Pinned:
    """What ``grade`` holds on to."""
    digests = {cell: verdict.output_digest for cell, verdict in grade.verdicts.items()}
    return Pinned(grade.root, {cell: digest for cell, digest in digests.items() if digest is not None})


def verify_run(run: Run, pinned: Pinned | None, *, root: str | None = None) -> Verification:
    """Compute every digest of ``run`` again from its records and hold it to what stands beside it and what was pinned.

    root: one more root to hold the outputs to, noted somewhere else. Reads the files once, a line at a time.
    """
    ledger = Ledger(run)
    damages: list[Damage] = []
    records: list[Finding] = []
    damaged: set[Cell] = set()
    for attempt in run.attempts(damages):
        ledger.take(attempt)
        if found := _record_finding(attempt, run):
            records.append(found)
            damaged.add(attempt.generation.cell)
    findings = records + [
        Finding("conflict", *cell, f"{first} and {second}", "these records hold different answers to the cell")
        for cell, first, second in ledger.conflicts
    ]
    findings += [Finding(_line_kind(damage), None, None, str(damage.place), damage.problem) for damage in damages]
    digests = {cell: answer.output_digest for cell, answer in ledger.answers.items()}
    if pinned is not None:
        findings += _against(pinned, digests, damaged)
    now = root_of(digests)
    if root is not None and root != now:
        findings.append(Finding("root", None, None, None, f"the root of the outputs is {now}, not {root}"))
    added = 0 if pinned is None else len(digests.keys() - pinned.digests.keys())
    return Verification(run, ledger, now, pinned, added, tuple(findings))


def _record_finding(attempt: Attempt, run: Run) -> Finding | None:
    generation = attempt.generation
    row = run.rows.get(generation.task_id)
    if attempt.altered:
        detail = f"its {' and '.join(attempt.altered)} do not fit its content"
        return Finding("damaged", *generation.cell, str(attempt.place), detail)
    if row is None:
        return None  # Extra: counted, and of no run.
    if generation.row_digest != row.row_digest:
        detail = "it answers another version of the data row than tasks.jsonl holds"
        return Finding("outdated", *generation.cell, str(attempt.place), detail)
    if generation.request.get("messages_digest") != run.messages_digests[row.task_id]:
        detail = "it answers other messages than tasks.jsonl holds"
        return Finding("outdated", *generation.cell, str(attempt.place), detail)
    return None


def _line_kind(damage: Damage) -> Kind:
    return "joined" if damage.kind == "joined" else "torn"


def _against(pinned: Pinned, digests: Mapping[Cell, str], damaged: set[Cell]) -> list[Finding]:
    findings = []
    for cell in sorted(pinned.digests):
        if cell in damaged:
            continue  # Named already, with its line.
        if cell not in digests:
            findings.append(Finding("gone", *cell, None, "it was graded, and its record is no longer there"))
        elif digests[cell] != pinned.digests[cell]:
            detail = f"its output is {digests[cell]}; graded was {pinned.digests[cell]}"
            findings.append(Finding("moved", *cell, None, detail))
    held = root_of(pinned.digests)
    if held != pinned.root:
        findings.append(
            Finding(
                "root", None, None, f"{VERDICTS}.jsonl", f"the grade pinned {pinned.root}, and its verdicts give {held}"
            )
        )
    return findings
