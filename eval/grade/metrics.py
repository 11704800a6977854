"""From verdicts to coverage and scores. A score that a missing cell could change is None, with the reason beside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from detharness.eval.grade.verdicts import Verdict
from detharness.eval.records import Cell, TaskRow
from detharness.statistics.calibration import BIN_SIZE, drop_last_calibration_error, rms_calibration_error
from detharness.statistics.pass_at_k import maj_at_k, pass_at_k
from detharness.statistics.standard_errors import between_tasks, within_tasks

_LARGEST_VOTE = 64  # Counting the subsets exactly takes a second for a task at 128 votes, and a minute at 1,024.

TIE_RULE = "fractional: where t answers share the most votes, a right one among them earns 1/t; no answer is no vote"


@dataclass(frozen=True)
class Graded:
    """What was asked, and the verdict of every cell that has a record."""

    tasks: Sequence[TaskRow]
    samples: int
    verdicts: Mapping[Cell, Verdict]

    def of_task(self, task_id: str) -> list[Verdict]:
        """Its verdicts, by sample."""
        found = (self.verdicts.get((task_id, sample)) for sample in range(self.samples))
        return [verdict for verdict in found if verdict is not None]

    def of_modality(self, modality: str) -> Graded:
        """The part whose questions are of ``modality``."""
        return Graded([row for row in self.tasks if row.modality == modality], self.samples, self.verdicts)


@dataclass(frozen=True)
class Coverage:
    """Cells counted. present: with an output. graded: with a verdict that counts. errors: tried, without an output."""

    expected: int
    present: int
    graded: int
    errors: int
    correct: int

    @property
    def complete(self) -> bool | None:
        """Whether each cell counts; None where nothing was asked."""
        return self.graded == self.expected if self.expected else None

    @property
    def pass_at_1(self) -> float | None:
        """The share correct, None while a cell is open. Tasks have equal samples, so this is the mean over tasks."""
        return self.correct / self.expected if self.complete else None

    def as_row(self) -> dict[str, Any]:
        """Plain JSON; missing: cells without any record."""
        return {
            "expected": self.expected,
            "present": self.present,
            "graded": self.graded,
            "missing": self.expected - self.present - self.errors,
            "errors": self.errors,
        }


def coverage_of(graded: Graded) -> Coverage:
    """Count the cells of ``graded``."""
    found = [verdict for row in graded.tasks for verdict in graded.of_task(row.task_id)]
    errors = sum(verdict.verdict == "error" for verdict in found)
    return Coverage(
        expected=len(graded.tasks) * graded.samples,
        present=len(found) - errors,
        graded=sum(verdict.graded for verdict in found),
        errors=errors,
        correct=sum(verdict.verdict == "correct" for verdict in found),
    )


def coverage_rows(graded: Graded) -> dict[str, Any]:
    """``coverage`` of report.json: all cells, and each modality with its own flag and Pass@1."""
    parts = {modality: coverage_of(graded.of_modality(modality)) for modality in ("text", "image")}
    return {
        **coverage_of(graded).as_row(),
        "by_modality": {
            modality: {**part.as_row(), "coverage_complete": part.complete, "pass_at_1": part.pass_at_1}
            for modality, part in parts.items()
        },
    }


def scores(graded: Graded, ks: Sequence[int], *, answers_vote: bool) -> dict[str, Any]:
    """Pass@1, its exact bounds, standard errors, pass@k and maj@k; ``reasons`` says why a value is None.

    answers_vote: whether equal answers are written alike, so that votes can be counted.
    """
    coverage = coverage_of(graded)
    open_cells = coverage.expected - coverage.graded
    reasons = {}
    incomplete = f"{open_cells} of {coverage.expected} cells have no verdict that counts" if open_cells else None
    correct = [sum(verdict.verdict == "correct" for verdict in graded.of_task(row.task_id)) for row in graded.tasks]
    between = within = None
    if incomplete:
        reasons = dict.fromkeys(("pass_at_1", "stderr_between_tasks", "stderr_sampling"), incomplete)
    else:
        if len(graded.tasks) > 1:
            between = between_tasks([Fraction(count, graded.samples) for count in correct])
        else:
            reasons["stderr_between_tasks"] = "one task has no spread between tasks"
        if graded.samples > 1:
            within = within_tasks(correct, graded.samples)
        else:
            reasons["stderr_sampling"] = "one sample of a task has no spread"
    return {
        "pass_at_1": coverage.pass_at_1,
        "coverage_complete": not open_cells,
        "bounds": {
            "lower": coverage.correct / coverage.expected,
            "upper": (coverage.correct + open_cells) / coverage.expected,
        },
        "stderr_between_tasks": between,
        "stderr_sampling": within,
        "pass_at_k": [_pass_row(graded, correct, k, incomplete) for k in ks],
        "maj_at_k": [_maj_row(graded, k, incomplete, answers_vote=answers_vote) for k in ks],
        "maj_tie_rule": TIE_RULE,
        "reasons": reasons,
    }


def default_ks(samples: int) -> list[int]:
    """1, 2, 4, ... below the number of samples, and that number."""
    return [*(2**power for power in range(samples.bit_length()) if 2**power < samples), samples]


def _pass_row(graded: Graded, correct: Sequence[int], k: int, incomplete: str | None) -> dict[str, Any]:
    reason = _too_few(graded, k) or incomplete
    value = None
    if reason is None:
        value = float(sum(pass_at_k(graded.samples, count, k) for count in correct) / len(correct))
    return {"k": k, "value": value, "reason": reason}


def _maj_row(graded: Graded, k: int, incomplete: str | None, *, answers_vote: bool) -> dict[str, Any]:
    reason = _too_few(graded, k) or incomplete
    if reason is None and _LARGEST_VOTE < k < graded.samples:
        reason = f"subsets of more than {_LARGEST_VOTE} votes are too many to count, unless it is all of them"
    if reason is None and not answers_vote:
        reason = "free-form answers that mean the same are written differently, so votes cannot be counted"
    value = None
    if reason is None:
        credits = [_majority(graded.of_task(row.task_id), k) for row in graded.tasks]
        value = float(sum(credits, Fraction(0)) / len(credits))
    return {"k": k, "value": value, "reason": reason}


def _too_few(graded: Graded, k: int) -> str | None:
    return f"n<k: {graded.samples} samples of a task, {k} wanted" if graded.samples < k else None


def _majority(verdicts: Sequence[Verdict], k: int) -> Fraction:
    votes = Counter(verdict.extracted for verdict in verdicts if verdict.extracted is not None)
    answers = sorted(votes, key=str)
    right = {verdict.extracted for verdict in verdicts if verdict.verdict == "correct"}
    correct = next((index for index, answer in enumerate(answers) if answer in right), None)
    abstentions = len(verdicts) - sum(votes.values())
    return maj_at_k([votes[answer] for answer in answers], correct, abstentions, k)


def calibration(graded: Graded) -> dict[str, Any]:
    """How far confidences lie from what came true, over the graded cells that state one.

    ``official_compatible`` follows the formula that is published with the benchmark, confidences as the judge read
    them where there is one; it leaves out the last bin, so it is for comparison with published figures only.
    """
    found = sorted(
        (verdict for row in graded.tasks for verdict in graded.of_task(row.task_id) if verdict.graded),
        key=lambda verdict: verdict.cell,
    )
    own = [(it.confidence, it.verdict == "correct") for it in found if it.confidence is not None]
    read = [
        (confidence, it.verdict == "correct")
        for it in found
        if (confidence := it.confidence if it.judge_confidence is None else it.judge_confidence) is not None
    ]
    enough, enough_official = len(own) >= BIN_SIZE, len(read) >= 2 * BIN_SIZE
    return {
        "n": len(own),
        "bin_size": BIN_SIZE,
        "rms_error": rms_calibration_error(own) if enough else None,
        "reason": None if enough else f"{len(own)} answers state a confidence, and one bin takes {BIN_SIZE}",
        "official_compatible": drop_last_calibration_error(read) if enough_official else None,
        "official_reason": None
        if enough_official
        else f"the published formula leaves out its last bin: below {2 * BIN_SIZE} answers ({len(read)} here) nothing "
        "is left and it gives 0 or fails",
    }
