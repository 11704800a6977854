"""A grade on the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from detharness.rendering.escape import one_line
from detharness.rendering.tables import make_table

_COVERAGE = ("expected", "present", "graded", "missing", "errors")


def print_grade(console: Console, report: Mapping[str, Any]) -> None:
    """Print coverage, scores, what was counted, warnings, and the sentence that matters last."""
    coverage = report["coverage"]
    parts = {"all": coverage, **coverage["by_modality"]}
    rows = [(name, *(part[column] for column in _COVERAGE)) for name, part in parts.items() if part["expected"]]
    console.print(make_table(("cells", *_COVERAGE), rows))
    console.print(make_table(("score", "value", "why not"), _scores(report)))
    counts = [(name.replace("_", " "), count) for name, count in report["counts"].items() if count]
    if counts:
        console.print(make_table(("counted", "number"), counts))
    for warning in report["warnings"]:
        console.print(Text(one_line(f"Warning, {warning['code']}: {warning['sentence']}.")))
    console.print(Text(f"root of the outputs: {report['generation_root']}"))
    if report["label"] is not None:
        console.print(Text(one_line(f"This is an {report['label']}.")))
    console.print(Text(one_line(headline(report))))


def _scores(report: Mapping[str, Any]) -> list[tuple[str, str | None, str | None]]:
    reasons = report["reasons"]
    names = {
        "pass_at_1": "Pass@1",
        "stderr_between_tasks": "standard error between tasks",
        "stderr_sampling": "standard error of sampling",
    }
    rows = [(title, _number(report[name]), reasons.get(name)) for name, title in names.items()]
    for kind, title in (("pass_at_k", "pass"), ("maj_at_k", "maj")):
        rows += [
            (f"{title}@{row['k']}", _number(row["value"]), row["reason"])
            for row in report[kind]
            if (kind, row["k"]) != ("pass_at_k", 1)
        ]
    if (calibration := report["calibration"]) is not None:
        rows.append(("RMS calibration error", _number(calibration["rms_error"]), calibration["reason"]))
    return rows


def headline(report: Mapping[str, Any]) -> str:
    """The score in a sentence, or why there is none."""
    score = report["pass_at_1"]
    if score is not None:
        return f"Pass@1 {score:.4f} on {report['task']}: every task x sample has a verdict."
    bounds = report["bounds"]
    return (
        f"No Pass@1 on {report['task']}: {report['reasons']['pass_at_1']}. "
        f"It lies between {bounds['lower']:.4f} (all of them wrong) and {bounds['upper']:.4f} (all of them right)."
    )


def _number(value: float | None) -> str | None:
    return None if value is None else f"{value:.4f}"
