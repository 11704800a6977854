"""``report.json`` of a probe of paths: a pure function of the manifest and the rows. No clock, no file's path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from detharness.probes.arms import arm_findings, framed
from detharness.probes.findings import Row
from detharness.probes.paths.axes import PATH_AXES
from detharness.probes.paths.wording import not_shown, summary


def build_report(manifest: Mapping[str, Any], rows: Sequence[Row]) -> dict[str, Any]:
    """The report of a run, complete or cut short."""
    arms = [_arm(arm, manifest, [row for row in rows if row["arm"] == arm["name"]]) for arm in manifest["arms"]]
    report = framed(manifest, "transformers", arms, tuple(PATH_AXES))
    return {**report, "summary": summary(report), "not_shown": not_shown(report)}


def _arm(arm: Mapping[str, Any], manifest: Mapping[str, Any], rows: Sequence[Row]) -> dict[str, Any]:
    found = arm_findings(arm, manifest, rows, tuple(PATH_AXES))
    reasons = {row["axis"]: row["reason"] for row in rows if row["kind"] == "unavailable"}
    return {**found, "axes": {name: _open(axis, reasons.get(name)) for name, axis in found["axes"].items()}}


def _open(axis: Mapping[str, Any], reason: str | None) -> Mapping[str, Any]:
    """The axis; not tested where its path was given up before it moved anything, whatever its first plays showed."""
    if reason is None or axis["status"] == "diverged":
        return axis
    return {**axis, "status": "not_tested", "reason": reason}
