"""A page with one row of cells for each task: colour and shape say what a cell is, a click shows what is behind it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from detharness.rendering.escape import reading_lines
from detharness.rendering.html import Html, asset, excerpt, html_page, json_in_html, tag

Colour = Literal["good", "bad", "warn", "other", "blank", "near"]

MAX_CELLS = 20_000
"""More cells than a browser draws at once."""

_GRID_BYTES = 4_800_000  # For the cells of a page and all that is behind them: with what stands above them, 5 MB.
_CELL_BYTES = 400  # What surrounds the texts of a cell, facts and marks of what was left out included.
_ROW_BYTES = 500  # The same for a row.
_SHORT_BYTES = 60  # An answer or an id; longer ones are cut.
_LONG_BYTES = 240  # A fact of a row, such as its question.


@dataclass(frozen=True)
class Kind:
    """What a cell can be: ``glyph`` is its shape, for who does not see its colour."""

    name: str
    glyph: str
    colour: Colour
    label: str


@dataclass(frozen=True)
class Pane:
    """One text behind a cell. ``marked``, between ``before`` and ``after``, is shown as the place to look at."""

    title: str
    before: str
    marked: str = ""
    after: str = ""


@dataclass(frozen=True)
class GridCell:
    """One sample of a task. ``kind``: the name of a ``Kind``. ``tags``: to filter by. ``facts``: (label, value)."""

    sample: int
    kind: str
    tags: tuple[str, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    panes: tuple[Pane, ...] = ()


@dataclass(frozen=True)
class GridRow:
    """One task, its cells in the order in which they are drawn."""

    id: str
    facts: tuple[tuple[str, str], ...]
    cells: tuple[GridCell, ...]


def text_budget(rows: int, cells: int, texts: int) -> int:
    """Bytes that each of ``texts`` texts of a page of that size may take (see ``excerpt``), 2,000 at most."""
    room = _GRID_BYTES - rows * _ROW_BYTES - cells * _CELL_BYTES
    return max(0, min(2_000, room // max(texts, 1)))


def grid_page(title: str, summary: Sequence[Html], kinds: Sequence[Kind], rows: Iterable[GridRow]) -> str:
    """The page: ``title``, ``summary``, then filters and the grid of ``rows``. It stays below 5 MB.

    Facts are cut to a line's length here; the texts of panes should be within ``text_budget`` already. Rows beyond
    5 MB or ``MAX_CELLS`` cells are left out, and the page says how many. ValueError for a cell of an unknown kind.
    """
    names = [kind.name for kind in kinds]
    tags: list[str] = []
    counts: Counter[str] = Counter()
    drawn = []
    cells = size = left_out = 0
    for row in rows:
        if cells + len(row.cells) > MAX_CELLS:
            left_out += 1
            continue
        for cell in row.cells:
            tags += [name for name in cell.tags if name not in tags]
        made = {
            "id": _short(row.id),
            "facts": [[_short(label), excerpt(value, _LONG_BYTES)] for label, value in row.facts],
            "cells": [_cell(cell, names, tags) for cell in row.cells],
        }
        weight = len(json_in_html(made).encode())
        if size + weight > _GRID_BYTES:
            left_out += 1
            continue
        cells, size = cells + len(row.cells), size + weight
        counts.update(cell.kind for cell in row.cells)
        drawn.append(made)
    if left_out:
        summary = [*summary, tag("p", f"{left_out} tasks are not drawn: a page holds {MAX_CELLS} cells and 5 MB.")]
    body = [
        tag("h1", title),
        *summary,
        tag("h2", "Cell by cell"),
        tag("noscript", tag("p", "The cells are drawn by a script of this page, which is switched off here.")),
        tag("div", id="filters", class_="filters"),
        tag("span", id="shown"),
        tag("div", id="grid"),
        tag("div", id="panel", class_="panel", aria_live="polite"),
    ]
    data = {
        "kinds": [
            {"glyph": kind.glyph, "colour": kind.colour, "label": kind.label, "count": counts[kind.name]}
            for kind in kinds
        ],
        "tags": [_short(name) for name in tags],
        "rows": drawn,
    }
    return html_page(title, Html("\n".join(body)), script=asset("grid_page.js"), data=data)


def _cell(cell: GridCell, names: list[str], tags: list[str]) -> dict[str, object]:
    return {
        "sample": cell.sample,
        "kind": names.index(cell.kind),
        "tags": [tags.index(name) for name in cell.tags],
        "facts": [[_short(label), _short(value)] for label, value in cell.facts],
        "panes": [
            {
                "title": _short(pane.title),
                "before": reading_lines(pane.before),
                "marked": reading_lines(pane.marked),
                "after": reading_lines(pane.after),
            }
            for pane in cell.panes
        ],
    }


def _short(text: str) -> str:
    return excerpt(text, _SHORT_BYTES)
