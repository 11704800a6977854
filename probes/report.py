"""What the records say: ``report.json``, a pure function of the manifest and the rows. No clock, no path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from detharness.probes.arms import arm_findings, framed
from detharness.probes.axes import AXES
from detharness.probes.combined import FACTORS
from detharness.probes.covering import pairs_covered
from detharness.probes.findings import Row, add_up, levels, moved
from detharness.probes.wording import not_shown, summary


def build_report(manifest: Mapping[str, Any], rows: Sequence[Row]) -> dict[str, Any]:
    """The report of a run, complete or cut short."""
    arms = [_arm(arm, manifest, [row for row in rows if row["arm"] == arm["name"]]) for arm in manifest["arms"]]
    causes = [{name: row[name] for name in row if name != "kind"} for row in rows if row["kind"] == "cause"]
    report = {**framed(manifest, "engine", arms, tuple(AXES)), "causes": causes}
    return {**report, "summary": summary(report), "not_shown": not_shown(report)}


def _arm(arm: Mapping[str, Any], manifest: Mapping[str, Any], rows: Sequence[Row]) -> dict[str, Any]:
    compared = [row for row in rows if row["kind"] == "trial" and row["with_solo"]["tokens"] > 0]
    return {**arm_findings(arm, manifest, rows, tuple(AXES)), "combined": _combined(compared)}


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
