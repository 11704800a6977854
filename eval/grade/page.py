"""report.html of one graded run: the report's numbers, and each task's samples as a row of cells.

The page holds an excerpt of each reply; the whole one is a command away, which every cell names.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from detharness.eval.records import Cell, Generation, TaskRow
from detharness.rendering.grid_page import GridCell, GridRow, Kind, Pane, grid_page, text_budget
from detharness.rendering.html import Html, excerpt, html_table, tag

KINDS = (
    Kind("correct", "●", "good", "correct"),
    Kind("wrong", "✕", "bad", "wrong"),
    Kind("other", "◆", "other", "no answer, ambiguous or not judged"),
    Kind("error", "▲", "warn", "error"),
    Kind("missing", "□", "blank", "missing"),
)
_KIND_OF = {"correct": "correct", "incorrect": "wrong", "error": "error"}

_QUESTION_BYTES = 400


class GradePage:
    """Takes the graded cells one by one and keeps an excerpt of each; ``render`` makes the page.

    tasks: in the order in which they are drawn. samples: required of each.
    """

    def __init__(self, tasks: Sequence[TaskRow], samples: int) -> None:
        self._tasks = tasks
        self._samples = samples
        self._budget = text_budget(len(tasks), len(tasks) * samples, len(tasks) * samples)
        self._cells: dict[Cell, GridCell] = {}

    def add(self, verdict: Mapping[str, Any], generation: Generation) -> None:
        """Enter one cell: its row of verdicts.jsonl and the record that was judged (an error row where it has none)."""
        name = verdict["verdict"]
        kind = _KIND_OF.get(name, "other")
        facts = [("verdict", name), ("extracted", _or_dash(verdict["extracted"]))]
        tags = list(verdict["flags"])
        if kind == "other":
            tags.insert(0, name)
        if generation.output is None:
            error = generation.error or {}
            facts.append(("error", f"{error.get('kind')}: {error.get('detail')}"))
            panes: tuple[Pane, ...] = ()
        else:
            facts.append(("finish reason", _or_dash(generation.output.finish_reason)))
            texts = [("Reply", generation.output.text), ("Reasoning, not graded", generation.output.reasoning)]
            there = [(title, text) for title, text in texts if text is not None]
            panes = tuple(Pane(title, excerpt(text, self._budget // len(there))) for title, text in there)
        where = shlex.quote(f"{generation.task_id}:{generation.sample_index}")
        facts.append(("in full", f"detharness eval verify RUN --show {where}"))
        self._cells[generation.cell] = GridCell(generation.sample_index, kind, tuple(tags), tuple(facts), panes)

    def render(self, report: Mapping[str, Any]) -> str:
        """The page of ``report`` (report.json); a cell that was never entered is missing."""
        rows = (
            GridRow(
                row.task_id,
                (("question", excerpt(row.question, _QUESTION_BYTES)), ("gold", row.gold)),
                tuple(
                    self._cells.get((row.task_id, sample)) or GridCell(sample, "missing")
                    for sample in range(self._samples)
                ),
            )
            for row in self._tasks
        )
        return grid_page(f"{report['task']}: graded", _summary(report), KINDS, rows)


def _summary(report: Mapping[str, Any]) -> list[Html]:
    score = report["pass_at_1"]
    if score is None:
        bounds = report["bounds"]
        headline = (
            f"No Pass@1: the coverage is incomplete. It lies between {_number(bounds['lower'])} (all missing cells "
            f"wrong) and {_number(bounds['upper'])} (all of them right)."
        )
    else:
        headline = f"Pass@1 {_number(score)}"
    coverage = report["coverage"]
    asked = {name: part for name, part in coverage["by_modality"].items() if part["expected"]}
    parts = {"all": coverage, **asked}
    columns = ("expected", "present", "graded", "missing", "errors")
    numbers = [
        ("standard error between tasks", _number(report["stderr_between_tasks"])),
        ("standard error of sampling", _number(report["stderr_sampling"])),
        *((name, str(count)) for name, count in sorted(report["counts"].items())),
        ("matches the published benchmark", "yes" if report["matches_published"] else "no"),
        ("generation root", str(report["generation_root"])),
    ]
    warnings = [tag("li", _sentence(warning)) for warning in report["warnings"]]
    return [
        tag("p", headline, class_="headline"),
        *([tag("h2", "Warnings"), tag("ul", *warnings)] if warnings else []),
        tag("h2", "Coverage"),
        html_table(
            ("cells", *columns),
            [(name, *(str(part[column]) for column in columns)) for name, part in parts.items()],
        ),
        tag("h2", "Numbers"),
        html_table(("", ""), numbers),
        tag("p", "RUN in a command stands for the folder of this run. Texts here are excerpts."),
    ]


def _sentence(warning: Any) -> str:
    return warning if isinstance(warning, str) else ", ".join(f"{key}: {warning[key]}" for key in sorted(warning))


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _or_dash(value: object) -> str:
    return "-" if value is None else str(value)
