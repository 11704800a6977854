"""A run as it is written down: records while it plays, the report and the durations at its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from detharness.errors import DetharnessError
from detharness.probes.interrupts import Interrupts
from detharness.probes.page.page import write_page
from detharness.records.jsonl import JsonlWriter
from detharness.records.run_folder import RunFolder

TRIALS = "trials"

Advance = Callable[[str], None]
"""Reports one unit of work as done, with a note."""

ShowProgress = Callable[[int], AbstractContextManager[Advance]]
"""Opens a progress display over that many units."""


@dataclass(frozen=True)
class Outcome:
    """What a probe leaves: its folder, its report, and whether it was cut short."""

    folder: Path
    report: dict[str, Any]
    interrupted: bool


@dataclass
class Journal:
    """Records as they are written, kept for the report; durations beside them, all in one folder."""

    writer: JsonlWriter
    folder: RunFolder
    rows: list[dict[str, Any]] = field(default_factory=list)
    timing: list[dict[str, Any]] = field(default_factory=list)

    def add(self, row: dict[str, Any]) -> None:
        """Write one record."""
        self.writer.append(row)
        self.rows.append(row)


def recorded_run(
    manifest: Mapping[str, Any],
    play: Callable[[Journal, Interrupts, Advance], None],
    build_report: Callable[[Mapping[str, Any], Sequence[Mapping[str, Any]]], dict[str, Any]],
    *,
    out: Path | None,
    units: int,
    progress: ShowProgress,
    on_interrupt: Callable[[], None],
) -> Outcome:
    """``play`` everything, ``units`` units of work, into a run folder of its own.

    The first Ctrl-C ends after the play in hand and leaves a valid report of what was done; the second stops at
    once with KeyboardInterrupt. A DetharnessError before the first comparison leaves nothing behind; after it, the
    records stay, without a report. UsageError when the folder cannot be written.
    """
    folder = RunFolder.open("probe", manifest, out=out)
    started = time.perf_counter()
    rows: Sequence[Mapping[str, Any]] = ()
    try:
        with folder.records(TRIALS) as writer, Interrupts(on_interrupt) as interrupts, progress(units) as advance:
            journal = Journal(writer, folder)
            rows = journal.rows
            play(journal, interrupts, advance)
    except DetharnessError:
        if not any(row["kind"] == "trial" for row in rows):
            folder.discard()
        raise
    report = build_report(manifest, rows)
    folder.write_report(report)
    write_page(folder.path, report)
    folder.write_timing({"seconds": time.perf_counter() - started, "plays": journal.timing})
    return Outcome(folder.path, report, interrupts.asked)
