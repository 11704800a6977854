"""An arm's findings, and the frame of ``report.json``: the same for every target whose plays are ours to script."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from detharness.probes.divergence_rows import divergence_rows
from detharness.probes.findings import (
    Row,
    axis_findings,
    joined_axis,
    joint_status,
    moved,
    prompt_findings,
    statistics,
)


def arm_findings(
    arm: Mapping[str, Any], manifest: Mapping[str, Any], rows: Sequence[Row], axes: Sequence[str]
) -> dict[str, Any]:
    """What the rows of one arm say. ``arm``: its entry in the manifest; ``axes``: every axis the target has."""
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
        "axes": {name: axis_findings(name, arm["axes"], trials) for name in axes},
        "statistics": statistics(compared, len(diverged)),
        "divergences": divergence_rows(rows),
    }


def _verdict(trials: Sequence[Row]) -> str:
    pairs = [(row["comparison"], row["with_solo"]) for row in trials]
    if any(moved(comparison) for pair in pairs for comparison in pair):
        return "diverged"
    return "identical" if any(comparison["tokens"] for pair in pairs for comparison in pair) else "not_tested"


def framed(
    manifest: Mapping[str, Any], kind: str, arms: Sequence[Mapping[str, Any]], axes: Sequence[str]
) -> dict[str, Any]:
    """The report without its sentences: the arms, and what they say together about the subject."""
    subjects = [arm for arm in arms if arm["role"] == "subject"]
    return {
        "schema": manifest["schema"],
        "kind": kind,
        "verdict": joint_status([arm["verdict"] for arm in subjects]),
        "complete": all(arm["complete"] for arm in arms),
        "arms": list(arms),
        "axes": {name: joined_axis([arm["axes"][name] for arm in subjects]) for name in axes},
        "amplified": manifest["amplified"],
        "effective_config": manifest["effective_config"],
        "environment": manifest["environment"],
        "target": manifest["target"],
    }
