"""The console and the tables printed on it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from detharness.rendering.escape import visible

Cell = str | int | None

# A pipe has no edge to wrap at; rich would assume 80 columns and break rows that a script reads.
_PIPE_WIDTH = 10_000

_VERDICT_STYLES = {"identical": "green", "diverged": "red", "not_tested": "yellow"}


class _Console(Console):
    """Leaves a broken pipe to the caller; rich would end the process with 1, which means that replies moved."""

    def on_broken_pipe(self) -> None:
        """Called while the BrokenPipeError is handled."""
        raise


def make_console() -> Console:
    """Return the console for tables and progress: stdout on a terminal, else stderr; a pipe gets data only.

    Markup, emoji codes and highlighting are off. Colours follow NO_COLOR and the other variables rich knows.
    """
    stream = sys.stdout if sys.stdout is not None and sys.stdout.isatty() else sys.stderr
    width = None if stream is not None and stream.isatty() else _PIPE_WIDTH
    return _Console(file=stream, width=width, markup=False, emoji=False, highlight=False)


def make_table(columns: Sequence[str], rows: Iterable[Sequence[Cell]], *, title: str | None = None) -> Table:
    """Return a table of ``rows``, each with one cell per column.

    Text is escaped and never read as markup; numbers stand right; None is a dash; a verdict gets its colour.
    ValueError when a row has another number of cells.
    """
    grid = [tuple(row) for row in rows]
    table = Table(title=None if title is None else Text(visible(title)), title_justify="left")
    for index, name in enumerate(columns):
        numeric = bool(grid) and all(isinstance(row[index], int | None) for row in grid if index < len(row))
        table.add_column(Text(visible(name)), justify="right" if numeric else "left", overflow="fold")
    for row in grid:
        if len(row) != len(columns):
            raise ValueError(f"a row of {len(row)} cells in a table of {len(columns)} columns")
        table.add_row(*(_cell(value) for value in row))
    return table


def _cell(value: Cell) -> Text:
    if value is None:
        return Text("-")
    text = str(value)
    return Text(visible(text), style=_VERDICT_STYLES.get(text, ""))
