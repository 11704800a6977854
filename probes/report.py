"""What the records say: ``report.json``, a pure function of the manifest and the rows. No clock, no path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from detharness.probes.axes import AXES
from detharness.probes.combined import FACTORS
from detharness.probes.covering import pairs_covered
from detharness.probes.divergence_rows import divergence_rows
from detharness.probes.findings import (
    Row,
    add_up,
    axis_findings,
    joined_axis,
    joint_status,
    levels,
    moved,
    prompt_findings,
    statistics,
)
from detharness.probes.wording import not_shown, summary


def build_report(manifest: Mapping[str, Any], rows: Sequence[Row]) -> dict[str, Any]:
    """The report of a run, complete or cut short."""
    arms = [_arm(arm, manifest, [row for row in rows if row["arm"] == arm["name"]]) for arm in manifest["arms"]]
    subjects = [arm for arm in arms if arm["role"] == "subject"]
    report = {
        "schema": manifest["schema"],
        "kind": "engine",
        "verdict": joint_status([arm["verdict"] for arm in subjects]),
        "complete": all(arm["complete"] for arm in arms),
        "arms": arms,
        "axes": {name: joined_axis([arm["axes"][name] for arm in subjects]) for name in AXES},
        "amplified": manifest["amplified"],
        "effective_config": manifest["effective_config"],
        "environment": manifest["environment"],
        "target": manifest["target"],
    }
    return {**report, "summary": summary(report), "not_shown": not_shown(report)}


def _arm(arm: Mapping[str, Any], manifest: Mapping[str, Any], rows: Sequence[Row]) -> dict[str, Any]:
    solo = {row["prompt"]: row for row in rows if row["kind"] == "solo"}
    trials = [row for row in rows if row["kind"] == "trial"]
    compared = [row for row in trials if row["with_solo"]["tokens"] > 0]
    diverged = [row for row in compared if moved(row["comparison"]) or moved(row["with_solo"])]
    return {
        "name": arm["name"],
        "kernels": arm["kernels"],
        "role": arm["role"],
        "backend": next((row["backend"] for row in solo.values()), None),
        "certificate": next((row["certificate"] for row in solo.values()), None),
        "dtype": arm["dtype"],
        "complete": any(row["kind"] == "arm_complete" for row in rows),
        "verdict": _verdict(trials),
        "prompts": [
            prompt_findings(prompt["id"], solo.get(prompt["id"]), compared)
            for prompt in manifest["prompts"]
            if prompt.get("twin_of") is None or prompt["id"] in solo  # Twins play only where an axis watches them.
        ],
        "axes": {name: axis_findings(name, arm["axes"], trials) for name in AXES},
        "combined": _combined(compared),
        "statistics": statistics(compared, len(diverged)),
        "divergences": divergence_rows(rows),
    }


def _verdict(trials: Sequence[Row]) -> str:
    pairs = [(row["comparison"], row["with_solo"]) for row in trials]
    if any(moved(comparison) for pair in pairs for comparison in pair):
        return "diverged"
    return "identical" if any(comparison["tokens"] for pair in pairs for comparison in pair) else "not_tested"


def _combined(trials: Sequence[Row]) -> dict[str, Any]:
    """Trials that blame no axis: traffic in which many things differ from the solo run."""
    mine = [row for row in trials if row["axis"] is None]
    factors: list[Any] = []
    for row in mine:
        if row["factors"] is not None and row["factors"] not in factors:
            factors.append(row["factors"])
    covered, pairs = pairs_covered(factors, FACTORS)
    return {
        "trials": len(mine),
        "diverged": sum(moved(row["comparison"]) for row in mine),
        "levels": levels(mine),
        "exercised": add_up([row["exercised"] for row in mine]),
        "pairs_covered": covered,
        "pairs": pairs,
    }


def exit_code(report: Mapping[str, Any], *, interrupted: bool) -> int:
    """The command's exit code: 130 interrupted, 1 the subject diverged, 3 an axis asked by name was not exercised."""
    if interrupted:
        return 130
    if report["verdict"] == "diverged":
        return 1
    named = report["effective_config"]["axes_by_name"] or []
    if report["verdict"] == "not_tested" or any(report["axes"][name]["status"] == "not_tested" for name in named):
        return 3
    return 0
