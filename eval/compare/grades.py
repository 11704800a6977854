"""The verdicts that a comparison rests on: those stored with a run, or made now; and A graded once more."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from detharness.errors import UsageError
from detharness.eval.compare.report import Graded, Regraded
from detharness.eval.compare.sides import Judged, read_sides
from detharness.eval.grade.grading import grade_records
from detharness.eval.grade.judge import Judge
from detharness.eval.grade.judge_cache import JUDGE
from detharness.eval.grade.report import build_report
from detharness.eval.grade.settings import GradeSettings, plan_grade
from detharness.eval.grade.stored import GRADE, StoredGrade, find_grade
from detharness.eval.grade.verdicts import Verdict
from detharness.eval.records import Cell
from detharness.eval.runs import Run

_TYPES: dict[str, Any] = {
    "mode": str,
    "think_tags": list,
    "judge_model": str | None,
    "judge_repeats": int,
    "max_tokens_budget": int | None,
}


def graded_run(run: Run, name: str) -> tuple[Graded, StoredGrade | None]:
    """``run`` with the verdicts in its folder ``name``; for the usual name, where there are none, with ones made now.

    Those made now are by the strict rules, without a judge. UsageError when a grade of another name is not there, or
    when the stored grade is of other outputs than the run holds now.
    """
    stored = find_grade(run.folder, name)
    if stored is not None:
        sides = read_sides(run, _judged(stored.verdicts))
        if sides.ledger.root != stored.root:
            raise UsageError(
                f"{stored.folder} graded other outputs than {run.folder} holds now: run eval verify to see which, "
                "then eval grade again"
            )
        return Graded(sides, stored.fingerprint, stored.complete, stored=True), stored
    if name != GRADE:
        raise UsageError(f"{run.folder} holds no grade of the name {name}: run eval grade on it first")
    plan = plan_grade(run, GradeSettings())
    grading = grade_records(run, plan.rules)
    report = build_report(grading, plan.fingerprint, plan.ks)
    sides = read_sides(run, _judged(grading.verdicts))
    return Graded(sides, report["grader_fingerprint"], report["coverage_complete"], stored=False), None


def regrade(run: Run, stored: StoredGrade | None) -> Regraded:
    """Grade ``run`` again from its records, as its grade was made; a judge's stored replies are replayed."""
    if stored is None:
        return Regraded(_judged(grade_records(run, plan_grade(run, GradeSettings()).rules).verdicts), None)
    fingerprint = stored.fingerprint
    if fingerprint.get("tokenizer_digest") is not None:
        return Regraded(None, "the grade cut replies by a tokenizer that the run does not hold")
    replies = stored.folder / f"{JUDGE}.jsonl"
    if fingerprint.get("judge") is not None and not replies.is_file():
        return Regraded(None, f"the judge's replies are not in {replies.name} beside the grade")
    plan = plan_grade(run, _settings_of(stored, replies))
    judge = None
    if plan.judge is not None:
        judge = Judge(plan.judge.identity, plan.judge.cache, None, repeats=plan.judge.repeats)
    return Regraded(_judged(grade_records(run, plan.rules, judge).verdicts), None)


def _settings_of(stored: StoredGrade, replies: Path) -> GradeSettings:
    """The settings that made ``stored``, by its fingerprint."""
    parts = (stored.fingerprint.get(name) for name in ("rules", "judge"))
    rules, judge = (part if isinstance(part, dict) else {} for part in parts)
    told: dict[str, Any] = {
        "mode": rules.get("mode"),
        "think_tags": rules.get("think_tags"),
        "judge_model": judge.get("model"),
        "judge_repeats": judge.get("repeats", 1),
        "max_tokens_budget": stored.fingerprint.get("max_tokens_budget"),
    }
    tags = told["think_tags"]
    fits = all(isinstance(told[name], _TYPES[name]) for name in told)
    if not fits or not all(isinstance(tag, str) for tag in tags):
        raise UsageError(f"{stored.folder} holds a grade of another version: run eval grade again")
    return GradeSettings(judge_cache=replies if judge else None, **told)


def _judged(verdicts: Mapping[Cell, Verdict]) -> dict[Cell, Judged]:
    return {cell: Judged(verdict.verdict, verdict.extracted) for cell, verdict in verdicts.items()}
