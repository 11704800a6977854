"""After a run: the first divergence of every axis is localised and shrunk, as far as that was asked."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from detharness.probes.causes.failure import Failure
from detharness.probes.causes.localize import localize
from detharness.probes.causes.reproduce import Subject, reproduction, reproduction_name
from detharness.probes.causes.shrink import MOST_REPLAYS, shrink, sizes
from detharness.probes.interrupts import Interrupts
from detharness.probes.journal import Advance, Journal
from detharness.probes.settings import Arm, Plan
from detharness.records.atomic import write_atomic
from detharness.targets.protocol import ScriptedTarget

CAUSES = "causes"

Axis = str | None
"""None: trials that blame no axis."""


@dataclass(frozen=True)
class Divergence:
    """A trial in which a reply moved, and everything it takes to play it again."""

    prompt: str
    axis: Axis
    level: str
    scenario: str
    failure: Failure


Found = Mapping[str, Mapping[Axis, Divergence]]
"""By arm and axis: the first divergence."""


def explain_units(plan: Plan) -> int:
    """Units of work that ``explain`` reports."""
    return sum(len(_axes(plan, arm)) for arm in plan.arms) if _asked(plan) else 0


def explain(plan: Plan, found: Found, journal: Journal, interrupts: Interrupts, advance: Advance) -> None:
    """Write a row to ``causes.jsonl`` for the first divergence of each axis of each arm, the subject's arms first.

    An interrupt ends it after the play in hand, and what was reached until then is written.
    """
    if not _asked(plan):
        return
    with journal.folder.records(CAUSES) as writer:
        for arm in sorted(plan.arms, key=lambda arm: arm.role != "subject"):
            target: ScriptedTarget | None = None
            for axis in _axes(plan, arm):
                divergence = found.get(arm.name, {}).get(axis)
                if divergence is not None and not interrupts.asked:
                    target = target or plan.target.with_kernels(arm.kernels, arm.dtype)
                    started = time.perf_counter()
                    row = _Explained(plan, arm, target, divergence, journal, interrupts).row()
                    journal.timing.append({"arm": arm.name, "cause_of": axis, "seconds": time.perf_counter() - started})
                    writer.append(row)
                    journal.rows.append(row)
                advance(f"causes of {arm.name} {axis or 'combined'}")


def _asked(plan: Plan) -> bool:
    return plan.settings.localize or plan.settings.shrink


def _axes(plan: Plan, arm: Arm) -> list[Axis]:
    # A run that differs from itself has no script to shrink, and no side that another run would show again.
    return [*(axis for axis in plan.depths[arm.name].axes if axis != "run_to_run"), None]


@dataclass(frozen=True)
class _Explained:
    plan: Plan
    arm: Arm
    target: ScriptedTarget
    divergence: Divergence
    journal: Journal
    interrupts: Interrupts

    def row(self) -> dict[str, Any]:
        """The record of one divergence; what was not asked for is null."""
        divergence, settings = self.divergence, self.plan.settings
        return {
            "kind": "cause",
            "arm": self.arm.name,
            "axis": divergence.axis,
            "level": divergence.level,
            "prompt": divergence.prompt,
            "scenario": divergence.scenario,
            **(self._localized() if settings.localize else {"status": None}),
            "shrunk": self._shrunk() if settings.shrink and not self.interrupts.asked else None,
        }

    def _localized(self) -> dict[str, Any]:
        trial, reference = self.divergence.failure.trial, self.divergence.failure.reference
        samples = trial.sample[1], reference.sample[1]
        cause = localize(self.target, trial.play, trial.sample[0], reference.play, reference.sample[0], samples)
        return {"status": "not_repeated"} if cause is None else cause.as_record()

    def _shrunk(self) -> dict[str, Any]:
        """Sizes before and after; "after" and "file" are null where the divergence did not show again."""
        failure = self.divergence.failure
        found = shrink(self.target, failure, stop=lambda: self.interrupts.asked)
        if found is None:
            return {
                "before": sizes(failure),
                "after": None,
                "most_replays": MOST_REPLAYS,
                "minimal": False,
                "file": None,
            }
        subject = Subject(
            target=self.plan.manifest["effective_config"]["target"],
            kernels=self.arm.kernels,
            dtype=self.arm.dtype,
            prompt=self.divergence.prompt,
            axis=self.divergence.axis,
            level=self.divergence.level,
        )
        folder = self.journal.folder.path
        name = reproduction_name(subject, [path.name for path in folder.iterdir()])
        write_atomic(folder / name, reproduction(found, subject).encode())
        return {**found.as_record(), "file": name}
