"""The folder of a grade: an earlier grade in it stays until the new one is on the disk as a whole.

report.json goes first and comes last, so that it never stands beside the files of another grade.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from detharness.errors import UsageError
from detharness.eval.grade.judge_cache import JUDGE
from detharness.eval.grade.verdicts import VERDICTS, Verdict
from detharness.records.atomic import sync_folder, write_atomic
from detharness.records.canonical import canonical_bytes
from detharness.records.run_folder import REPORT, TIMING

PAGE = "report.html"

_OURS = (f"{VERDICTS}.jsonl", REPORT, PAGE, TIMING, f"{JUDGE}.jsonl", "staged")
_STAGED = ".staged"


def prepare_folder(folder: Path) -> None:
    """Make ``folder``, or check that it holds a grade and nothing else; UsageError otherwise."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        strangers = sorted(path.name for path in folder.iterdir() if not path.name.lstrip(".").startswith(_OURS))
    except OSError as error:
        raise UsageError(f"--out {folder} cannot be a folder for the grade: {error.strerror}") from None
    if strangers:
        raise UsageError(f"--out {folder} holds {strangers[0]!r}, which is of no grade: name a new or empty folder")


def write_grade(
    folder: Path,
    *,
    report: Mapping[str, Any],
    verdicts: Iterable[Verdict],
    page: str,
    timing: Mapping[str, Any],
) -> None:
    """Write the files of a grade; UsageError when the disk refuses, and then an earlier grade is still there."""
    rows = b"".join(canonical_bytes(verdict.as_row()) + b"\n" for verdict in verdicts)
    files = {
        f"{VERDICTS}.jsonl": rows,
        PAGE: page.encode(),
        TIMING: canonical_bytes(dict(timing)) + b"\n",
        REPORT: canonical_bytes(dict(report)) + b"\n",
    }
    staged = folder / _STAGED
    try:
        if staged.exists():  # From a grader that was killed.
            shutil.rmtree(staged)
        staged.mkdir()
        for name, data in files.items():
            write_atomic(staged / name, data)
        (folder / REPORT).unlink(missing_ok=True)
        for name in files:
            (staged / name).replace(folder / name)
        staged.rmdir()
        sync_folder(folder)
    except OSError as error:
        shutil.rmtree(staged, ignore_errors=True)
        raise UsageError(f"cannot write the grade into {folder}: {error.strerror}") from None
