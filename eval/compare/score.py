"""The difference of two Pass@1, split into causes that add up to it exactly."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

from detharness.eval.compare.levels import CAUSES, cause_of
from detharness.eval.compare.sides import Side
from detharness.eval.records import Cell
from detharness.statistics.paired import SignFlipTest, detectable_effect, sign_flip_test
from detharness.statistics.standard_errors import between_tasks, within_tasks

ALPHA = 0.05
POWER = 0.8


@dataclass(frozen=True)
class Part:
    """What one cause adds to the difference: ``gained`` cells turned right, ``lost`` cells turned wrong."""

    difference: Fraction
    gained: int
    lost: int


@dataclass(frozen=True)
class Score:
    """Pass@1 of both sides and what their difference is made of.

    basis: "complete" (each run's own Pass@1) or "common" (the cells that both runs graded, since one of them is
    incomplete). parts: cause -> its part, "coverage" for cells that one run alone has; they add up to ``b - a``.
    """

    basis: Literal["complete", "common"]
    a: Fraction
    b: Fraction
    parts: dict[str, Part]
    tasks: int
    cells: int
    test: SignFlipTest
    one_cell: Fraction
    paired_error: float | None
    sampling_error: float | None

    @property
    def difference(self) -> Fraction:
        """B minus A."""
        return self.b - self.a

    @property
    def chance_suffices(self) -> bool:
        """Whether exchanging the runs task by task gives so large a difference at least once in 20 times."""
        return self.test.p_value >= ALPHA

    def as_row(self) -> dict[str, Any]:
        """Plain JSON; each exact number stands as a fraction beside its float."""
        errors = {"paired": self.paired_error, "independent_runs": self.sampling_error}
        return {
            "basis": self.basis,
            "tasks": self.tasks,
            "cells": self.cells,
            "pass_at_1": {"a": _number(self.a), "b": _number(self.b)},
            "difference": _number(self.difference),
            "parts": {
                cause: {"difference": _number(part.difference), "gained": part.gained, "lost": part.lost}
                for cause, part in self.parts.items()
            },
            "test": {
                "name": "paired sign-flip permutation test on task-level differences",
                "p_value": self.test.p_value,
                "exact": self.test.exact,
                "draws": self.test.draws,
                "tasks_that_differ": self.test.tasks,
                "alpha": ALPHA,
                "chance_suffices": self.chance_suffices,
            },
            "smallest_detectable_effect": {
                "power": POWER,
                "alpha": ALPHA,
                "one_cell": _number(self.one_cell),
                **{
                    name: None if error is None else detectable_effect(error, alpha=ALPHA, power=POWER)
                    for name, error in errors.items()
                },
            },
        }


def _number(value: Fraction) -> dict[str, Any]:
    return {"exact": str(value), "value": float(value)}


def pass_at_1(correct: Mapping[Cell, bool], cells: Collection[Cell]) -> Fraction:
    """Mean over the tasks of ``cells`` of the share of right samples; ValueError without cells."""
    if not cells:
        raise ValueError("no cells, no score")
    return sum((weight for cell, weight in weights_of(cells).items() if correct[cell]), Fraction(0))


def weights_of(cells: Collection[Cell]) -> dict[Cell, Fraction]:
    """What one cell weighs in Pass@1: tasks weigh the same, and so do the samples of a task."""
    samples = Counter(task_id for task_id, _ in cells)
    return {cell: Fraction(1, len(samples) * samples[cell[0]]) for cell in cells}


def score_of(a: Mapping[Cell, Side], b: Mapping[Cell, Side], *, complete: bool) -> Score | None:
    """Split Pass@1 of ``b`` minus that of ``a``; None when no cell was graded in both.

    complete: whether both runs are, so that their own Pass@1 exist. The part "coverage" is what is left when the cells
    that both have are compared: (B - A) over each run's own cells, minus (B - A) over the common ones.
    """
    right_a, right_b = _verdicts(a), _verdicts(b)
    common = sorted(right_a.keys() & right_b.keys())
    if not common:
        return None
    weights = weights_of(common)
    parts: dict[str, Part] = {}
    causes = {cell: cause_of(a[cell], b[cell]) for cell in common if right_a[cell] != right_b[cell]}
    for cause in CAUSES:
        gained = [cell for cell, found in causes.items() if found == cause and right_b[cell]]
        lost = [cell for cell, found in causes.items() if found == cause and right_a[cell]]
        difference = _sum(weights, gained) - _sum(weights, lost)
        parts[cause] = Part(difference, len(gained), len(lost))
    common_a, common_b = pass_at_1(right_a, common), pass_at_1(right_b, common)
    whole_a, whole_b = (pass_at_1(right_a, right_a), pass_at_1(right_b, right_b)) if complete else (common_a, common_b)
    parts["coverage"] = Part((whole_b - whole_a) - (common_b - common_a), 0, 0)
    samples = Counter(task_id for task_id, _ in common)
    gains = Counter(dict.fromkeys(samples, 0))
    for cell in common:
        gains[cell[0]] += right_b[cell] - right_a[cell]
    differences = [Fraction(gains[task_id], count) for task_id, count in samples.items()]
    return Score(
        basis="complete" if complete else "common",
        a=whole_a,
        b=whole_b,
        parts=parts,
        tasks=len(differences),
        cells=len(common),
        test=sign_flip_test(differences),
        one_cell=min(weights.values()),
        paired_error=between_tasks(differences) if len(differences) > 1 else None,
        sampling_error=_sampling_error(right_a, right_b, common),
    )


def _verdicts(sides: Mapping[Cell, Side]) -> dict[Cell, bool]:
    return {cell: correct for cell, side in sides.items() if (correct := side.judged.correct) is not None}


def _sum(weights: Mapping[Cell, Fraction], cells: Collection[Cell]) -> Fraction:
    return sum((weights[cell] for cell in cells), Fraction(0))


def _sampling_error(a: Mapping[Cell, bool], b: Mapping[Cell, bool], common: Collection[Cell]) -> float | None:
    """Standard error of the difference of two runs that sample anew; None unless all tasks have one n of at least 2."""
    samples = Counter(task_id for task_id, _ in common)
    count = min(samples.values())
    if count < 2 or max(samples.values()) != count:
        return None
    errors = []
    for right in (a, b):
        correct = Counter(task_id for task_id, sample in common if right[task_id, sample])
        errors.append(within_tasks([correct[task_id] for task_id in samples], count))
    return math.hypot(*errors)
