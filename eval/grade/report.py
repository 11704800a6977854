"""report.json: a function of the records, the task rows and the grader, without clock, path or order of lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from detharness.eval.grade.grading import Grading
from detharness.eval.grade.metrics import Graded, calibration, coverage_rows, scores
from detharness.eval.grade.suspicions import letter_skew
from detharness.records.digests import sha256_value

SCHEMA = "detharness.grade/1"

_EXACT = (
    "unofficial lower bound: answers were matched exactly, without the judge of the benchmark's protocol, so an answer "
    "in other words is not counted"
)
_COUNTED = ("correct", "incorrect", "no_answer", "ambiguous", "needs_judge", "judge_failed", "unparsed", "over_budget")
_LISTED = 1000  # Cells that nobody asked for, by name; the count has them all.


def build_report(grading: Grading, fingerprint: Mapping[str, Any], ks: Sequence[int]) -> dict[str, Any]:
    """The report of ``grading``. fingerprint: what the grader was; its digest is added. ks: for pass@k and maj@k."""
    run, ledger = grading.run, grading.ledger
    graded = Graded(run.tasks, run.samples, grading.verdicts)
    kind = fingerprint["answer_kind"]
    numbers = scores(graded, ks, answers_vote=kind != "hle")
    used = [sum(verdict.graded for verdict in graded.of_task(row.task_id)) for row in run.tasks]
    return {
        "schema": SCHEMA,
        "task": run.task,
        "task_version": run.manifest.get("task_version"),
        "label": _EXACT if fingerprint["grader"] == "exact" else None,
        **numbers,
        "coverage": coverage_rows(graded),
        "n_used": {"min": min(used), "max": max(used)},
        "counts": _counts(grading),
        "flags": dict(sorted(_flags(grading).items())),
        "calibration": calibration(graded) if kind == "hle" else None,
        "judge": _judge_row(grading),
        "matches_published": run.manifest.get("matches_published") is True,
        "generation_root": ledger.root,
        "grader_fingerprint": {**fingerprint, "digest": sha256_value(fingerprint)},
        "max_tokens_budget": fingerprint["max_tokens_budget"],
        "warnings": _warnings(grading, kind),
        "extra": [list(cell) for cell in sorted(ledger.extra)[:_LISTED]],
        "tasks": [
            {
                "task_id": row.task_id,
                "modality": row.modality,
                "required": run.samples,
                "n_used": count,
                "correct": sum(verdict.verdict == "correct" for verdict in graded.of_task(row.task_id)),
            }
            for row, count in zip(run.tasks, used, strict=True)
        ],
    }


def _counts(grading: Grading) -> dict[str, int]:
    ledger, verdicts = grading.ledger, grading.verdicts
    names: Counter[str] = Counter(verdict.verdict for verdict in verdicts.values())
    flags = _flags(grading)
    kinds = Counter(damage.kind for damage in grading.damages)
    return {
        **{name: names[name] for name in _COUNTED},
        "errors": names["error"],
        "truncated": flags["truncated"],
        "fallback": flags["fallback"],
        "retried": sum(verdict.attempts > 1 for verdict in verdicts.values()),
        "duplicates": ledger.duplicates,
        "extra": len(ledger.extra),
        "altered": len(ledger.altered),
        "outdated": len(ledger.outdated),
        "joined_lines": kinds["joined"],
        "torn_lines": kinds["torn"],
    }


def _flags(grading: Grading) -> Counter[str]:
    return Counter(flag for verdict in grading.verdicts.values() for flag in verdict.flags)


def _judge_row(grading: Grading) -> dict[str, Any] | None:
    if grading.flips is None:
        return None
    compared, flipped = grading.flips.compared, grading.flips.flipped
    return {
        "compared": compared,
        "flipped": flipped,
        "flip_rate": flipped / compared if compared else None,
        "failures": dict(sorted(Counter(kind for kind, _ in grading.failures).items())),
    }


def _warnings(grading: Grading, kind: str) -> list[Mapping[str, Any]]:
    ledger = grading.ledger
    torn = sum(damage.kind == "torn" for damage in grading.damages)
    found = [
        ("altered_records", len(ledger.altered), "do not fit their digests, so somebody or something changed them"),
        ("outdated_records", len(ledger.outdated), "answer another data row or other messages than the run asks"),
        ("extra_records", len(ledger.extra), "were not asked for by this run: they are listed under extra"),
        ("torn_lines", torn, "of the generation files could not be read, at least in part"),
    ]
    counted = [
        {
            "code": code,
            "count": count,
            "sentence": f"{count} {'lines' if code == 'torn_lines' else 'records'} {what}; none of it counts",
        }
        for code, count, what in found
        if count
    ]
    skew = letter_skew(grading.run.tasks) if kind == "letter" else []
    return sorted([*grading.warnings, *counted, *skew], key=lambda warning: str(warning["code"]))
