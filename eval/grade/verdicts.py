"""The verdict on one cell, as verdicts.jsonl holds it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from detharness.eval.records import Cell, Modality

VERDICTS = "verdicts"  # NAME of NAME.jsonl in the folder of a grade.

Name = Literal[
    "correct",
    "incorrect",
    "no_answer",
    "ambiguous",
    "needs_judge",
    "judge_failed",
    "unparsed",
    "over_budget",  # Longer than --max-tokens-budget, and what it would have been by then cannot be known.
    "error",
]
GRADED = frozenset({"correct", "incorrect", "no_answer", "ambiguous"})
"""Verdicts that count in Pass@1; under any other the cell still waits for one."""


@dataclass(frozen=True)
class Verdict:
    """What is held of one cell that has a record.

    extracted: the answer that was judged. confidence: percent, as the reply itself states it. judge_confidence: as
    the judge read it. attempts: how often the cell was tried. output_digest: None for an error.
    """

    task_id: str
    sample_index: int
    modality: Modality
    verdict: Name
    extracted: str | int | None
    flags: tuple[str, ...]
    output_digest: str | None
    attempts: int
    confidence: int | None = None
    judge_confidence: int | None = None

    @property
    def cell(self) -> Cell:
        """The cell it is about."""
        return self.task_id, self.sample_index

    @property
    def graded(self) -> bool:
        """Whether it counts in Pass@1."""
        return self.verdict in GRADED

    def as_row(self) -> dict[str, Any]:
        """The JSON row."""
        return {
            "task_id": self.task_id,
            "sample_index": self.sample_index,
            "modality": self.modality,
            "verdict": self.verdict,
            "extracted": self.extracted,
            "flags": list(self.flags),
            "output_digest": self.output_digest,
            "attempts": self.attempts,
            "confidence": self.confidence,
            "judge_confidence": self.judge_confidence,
        }
