"""Two run folders in, compare.json and compare.html out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from detharness.errors import UsageError
from detharness.eval.compare.grades import graded_run, regrade
from detharness.eval.compare.page import compare_page
from detharness.eval.compare.report import Comparison, compare_runs
from detharness.eval.runs import open_run
from detharness.records.atomic import write_atomic
from detharness.records.canonical import canonical_bytes
from detharness.records.run_folder import RunFolder

REPORT = "compare.json"
PAGE = "compare.html"


@dataclass(frozen=True)
class Outcome:
    """A finished comparison, and where it lies."""

    folder: Path
    comparison: Comparison


def compare_folders(a: Path, b: Path, *, grade: str, out: Path | None) -> Outcome:
    """Compare the runs in ``a`` and ``b`` by their grades of the name ``grade``; UsageError before anything is written.

    out: new or empty; None for a new folder in runs/.
    """
    if Path(grade).name != grade:
        raise UsageError(f"--grade {grade!r} must be the name of a folder in both runs, such as grade or grade-lenient")
    runs = open_run(a), open_run(b)
    graded_a, stored = graded_run(runs[0], grade)
    graded_b, _ = graded_run(runs[1], grade)
    comparison = compare_runs(graded_a, graded_b, regrade(runs[0], stored))
    page = compare_page(comparison)
    manifest = {
        "command": "eval compare",
        "grade": grade,
        "runs": {name: comparison.report["runs"][name]["generation_root"] for name in ("a", "b")},
    }
    folder = RunFolder.open("compare", manifest, out=out).path
    try:
        write_atomic(folder / PAGE, page.encode())
        write_atomic(folder / REPORT, canonical_bytes(dict(comparison.report)) + b"\n")
    except OSError as error:
        raise UsageError(f"cannot write the comparison into {folder}: {error.strerror}") from None
    return Outcome(folder, comparison)
