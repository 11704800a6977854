"""Progress: bars with the time left on a terminal, a few plain lines elsewhere. The clock is read for display alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from detharness.rendering.escape import visible

Advance = Callable[[str], None]
"""Called with a note on what was done, once for each unit of work that ended."""

_PLAIN_LINES = 10  # A log wants to see that work goes on, not each of hundreds of trials.
_PLAIN_SECONDS = 60.0  # Nor does it want to be silent for hours.


@contextmanager
def show_progress(console: Console, title: str, total: int) -> Iterator[Advance]:
    """Show ``total`` units of work on ``console`` while open; yields the function that reports one as done."""
    if console.is_terminal:
        with _bar(console, TimeRemainingColumn()) as bar:
            task = bar.add_task(visible(title), total=total)
            yield lambda note: bar.update(task, advance=1, description=visible(f"{title}: {note}"))
    else:
        yield _plain_lines(console, title, total)


def _bar(console: Console, last: TextColumn | TimeRemainingColumn) -> Progress:
    return Progress(
        TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), last, console=console
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


@dataclass(frozen=True)
class Tally:
    """How far work of several kinds is. lanes: kind -> (done, expected). left: units that will still be tried.

    errors: units that were given up. tokens: made since the display was opened.
    """

    lanes: Mapping[str, tuple[int, int]]
    left: int
    errors: int
    tokens: int


@contextmanager
def show_lanes(
    console: Console, title: str, first: Tally, *, clock: Callable[[], float] = time.monotonic
) -> Iterator[Callable[[Tally], None]]:
    """Show work of several kinds side by side while open, from ``first`` on; yields the function that takes a tally.

    A terminal gets a bar for each kind. Elsewhere a line is printed whenever a tenth of the work is done, and at the
    first tally after a minute without one.
    """
    started = clock()

    def status(now: Tally) -> str:
        seconds = max(clock() - started, 1e-9)
        tried = first.left - now.left
        eta = f"about {seconds / tried * now.left:.0f} s left" if tried > 0 else "time left unknown"
        return f"{now.tokens / seconds:.0f} tokens/s, {now.errors} errors, {eta}"

    if console.is_terminal:
        with _bar(console, TextColumn("{task.fields[status]}", markup=False)) as bar:
            tasks = {
                name: bar.add_task(visible(f"{title}: {name}"), completed=done, total=expected, status="")
                for name, (done, expected) in first.lanes.items()
            }

            def draw(now: Tally) -> None:
                for name, (done, expected) in now.lanes.items():
                    bar.update(tasks[name], completed=done, total=expected)
                bar.update(next(iter(tasks.values())), status=status(now))

            yield draw
    else:
        printed_at, printed_tenth = started, 0

        def write(now: Tally) -> None:
            nonlocal printed_at, printed_tenth
            tenth = (first.left - now.left) * _PLAIN_LINES // max(first.left, 1)
            if tenth > printed_tenth or clock() - printed_at >= _PLAIN_SECONDS:
                printed_at, printed_tenth = clock(), tenth
                lanes = ", ".join(f"{name} {done}/{expected}" for name, (done, expected) in now.lanes.items())
                console.print(Text(visible(f"{title}: {lanes}; {status(now)}")))

        yield write
