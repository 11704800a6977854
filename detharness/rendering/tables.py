"""The console and the tables printed on it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from detharness.rendering.escape import visible

Cell = str | int | None

# A pipe has no edge to wrap at; rich would assume 80 columns and break rows that a script reads.
_PIPE_WIDTH = 10_000

_WORD = 24  # Longer ones are names of files or models, or text without spaces.
_EDGES = 3  # What a column takes beside its text: a space on both sides, and a line.

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


def fitting_table(
    width: int, columns: Sequence[str], rows: Iterable[Sequence[Cell]], *, title: str | None = None
) -> Table:
    """A ``make_table`` whose words stay whole within ``width`` characters; put what matters most to the left.

    Columns in which no row says anything are left out; where the rest does not fit, columns at the right are, and the
    caption names them. Words longer than ``_WORD`` characters are folded.
    """
    grid = [tuple(row) for row in rows]
    told = [index for index in range(len(columns)) if not grid or any(row[index] is not None for row in grid)]
    least, most = {}, {}
    for index in told:
        texts = [columns[index], *("-" if row[index] is None else visible(str(row[index])) for row in grid)]
        least[index] = min(_WORD, max(cell_len(word) for text in texts for word in text.split(" ")))
        most[index] = max(cell_len(text) for text in texts)
    shown: list[int] = []
    room = width - 1
    for index in told:
        if shown and room < least[index] + _EDGES:
            break
        shown.append(index)
        room -= least[index] + _EDGES
    picked = [[row[index] for index in shown] for row in grid]
    table = make_table([columns[index] for index in shown], picked, title=title)
    for column, size in zip(table.columns, _shared_out(room, shown, least, most), strict=True):
        column.width = size
    if left_out := told[len(shown) :]:
        table.caption = Text(visible(f"no room for: {', '.join(columns[index] for index in left_out)}"))
        table.caption_justify = "left"
    return table


def _shared_out(room: int, shown: Sequence[int], least: Mapping[int, int], most: Mapping[int, int]) -> list[int]:
    """Widths of columns: ``least`` each, and of the ``room`` beyond it the more the more they lack to ``most``."""
    lacking = sum(most[index] - least[index] for index in shown)
    share = 1.0 if lacking <= room else max(room, 0) / lacking
    return [least[index] + int((most[index] - least[index]) * share) for index in shown]


def _cell(value: Cell) -> Text:
    if value is None:
        return Text("-")
    text = str(value)
    return Text(visible(text), style=_VERDICT_STYLES.get(text, ""))
