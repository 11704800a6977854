"""A comparison on the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from detharness.eval.compare.wording import level_rows, part_rows, sentences
from detharness.rendering.escape import one_line
from detharness.rendering.tables import make_table

_ROWS = 20


def print_comparison(console: Console, report: Mapping[str, Any]) -> None:
    """Print levels, causes, the first cells that moved, and the sentences."""
    console.print(make_table(("cells by level", "same", "different", "unknown"), level_rows(report)))
    if report["score"] is not None:
        columns = ("Pass@1, B - A", "points", "cells gained", "cells lost")
        console.print(make_table(columns, part_rows(report["score"])))
    moved = [cell for cell in report["differing_cells"] if cell["first_difference"] is not None]
    if moved:
        rows = []
        for cell in moved[:_ROWS]:
            difference = cell["first_difference"]
            ours, theirs = difference["text"] or (None, None)
            at = difference["part"] if difference["index"] is None else f"{difference['part']} {difference['index']}"
            rows.append((cell["task_id"], cell["sample_index"], cell["cause"], at, ours, theirs))
        console.print(make_table(("task", "sample", "cause", "first difference", "A", "B"), rows))
    if len(moved) > _ROWS:
        console.print(Text(f"and {len(moved) - _ROWS} more moved cells: compare.json lists them all."))
    for sentence in sentences(report):
        console.print(Text(one_line(sentence)))
