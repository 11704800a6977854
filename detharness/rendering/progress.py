"""Progress: a bar with the time left on a terminal, a few plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from detharness.rendering.escape import visible

Advance = Callable[[str], None]
"""Called with a note on what was done, once for each unit of work that ended."""

_PLAIN_LINES = 10  # A log wants to see that work goes on, not each of hundreds of trials.


@contextmanager
def show_progress(console: Console, title: str, total: int) -> Iterator[Advance]:
    """Show ``total`` units of work on ``console`` while open; yields the function that reports one as done.

    The clock is read for the display alone.
    """
    if console.is_terminal:
        with _bar(console) as bar:
            task = bar.add_task(visible(title), total=total)
            yield lambda note: bar.update(task, advance=1, description=visible(f"{title}: {note}"))
    else:
        yield _plain_lines(console, title, total)


def _bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
    )


def _plain_lines(console: Console, title: str, total: int) -> Advance:
    started = time.monotonic()
    done = 0

    def advance(note: str) -> None:
        nonlocal done
        done += 1
        if done * _PLAIN_LINES // total > (done - 1) * _PLAIN_LINES // total:
            left = (time.monotonic() - started) / done * (total - done)
            console.print(Text(visible(f"{title}: {done}/{total}, about {left:.0f} s left ({note})")))

    return advance
