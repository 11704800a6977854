"""``detharness eval verify``: are the outputs what they were?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from detharness.cli.exits import plain_errors, write_stdout

if TYPE_CHECKING:
    from detharness.eval.runs import Run


def verify(
    run: Annotated[Path, typer.Argument(help="The folder of a run: --out of eval generate.")],
    grade: Annotated[
        Path | None, typer.Option(help="The grade that pinned the outputs. Default: RUN/grade, if it is there.")
    ] = None,
    root: Annotated[
        str | None, typer.Option(metavar="SHA256", help="A root noted elsewhere, to hold the outputs to.")
    ] = None,
    show: Annotated[
        str | None, typer.Option(metavar="TASK:SAMPLE", help="Print one reply whole, escaped, and nothing else.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="End stdout with the report as one line of JSON.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Compute every digest and the root of a run again, and name each cell that is damaged, moved or gone.

    Exit codes: 0 it holds, 1 moved or damaged, 2 usage, 3 a cell could not be asked again, 130 interrupted.
    """
    with plain_errors(debug=debug):
        from detharness.eval.runs import open_run

        opened = open_run(run)
        code = _show(opened, show) if show is not None else _verify(opened, grade, root, json=json)
    raise typer.Exit(code)


def _show(run: Run, cell: str) -> int:
    from detharness.eval.verify.showing import parse_cell, records_of
    from detharness.eval.verify.tables import reply_lines

    lines = [line for place, record in records_of(run, parse_cell(cell, run)) for line in reply_lines(place, record)]
    write_stdout("\n".join(lines) + "\n")
    return 0


def _verify(run: Run, grade: Path | None, root: str | None, *, json: bool) -> int:
    from detharness.eval.grade.stored import read_grade
    from detharness.eval.verify.checking import pinned_by, verify_run
    from detharness.eval.verify.tables import print_verification
    from detharness.records.canonical import canonical_bytes
    from detharness.rendering.tables import make_console

    if grade is None and (run.folder / "grade").exists():
        grade = run.folder / "grade"
    pinned = None if grade is None else pinned_by(read_grade(grade))
    found = verify_run(run, pinned, root=root)
    report = {**found.as_report(), "regenerated": None}
    print_verification(make_console(), report)
    code = 0 if found.holds else 1
    if json:
        write_stdout(canonical_bytes({**report, "exit_code": code}).decode() + "\n")
    return code
