"""``detharness eval verify``: are the outputs what they were?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from detharness.cli.exits import plain_errors, write_stdout
from detharness.errors import UsageError

if TYPE_CHECKING:
    from detharness.eval.runs import Ledger, Run
    from detharness.eval.verify.regenerate import Regenerated
    from detharness.eval.verify.reopening import Again


def verify(
    run: Annotated[Path, typer.Argument(help="The folder of a run: --out of eval generate.")],
    grade: Annotated[
        Path | None, typer.Option(help="The grade that pinned the outputs. Default: RUN/grade, if there is one.")
    ] = None,
    root: Annotated[
        str | None, typer.Option(metavar="SHA256", help="A root noted elsewhere, to hold the outputs to.")
    ] = None,
    regenerate: Annotated[
        int | None, typer.Option(metavar="K", help="Ask K answered cells again, and compare what comes back.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Which cells --regenerate draws.")] = 0,
    target: Annotated[
        str | None, typer.Option(help="Where --regenerate finds the run's target now. Default: as in the manifest.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="The run's data file, which alone holds the images that --regenerate sends.")
    ] = None,
    concurrency: Annotated[int, typer.Option(help="Requests of --regenerate at once.")] = 8,
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
        from detharness.eval.verify.reopening import Again

        if regenerate is None and (target, data) != (None, None):
            raise UsageError("--target and --data are only read with --regenerate: give it too, or leave them out")
        opened = open_run(run)
        again = None
        if regenerate is not None:
            again = Again(count=regenerate, seed=seed, target=target, data=data, concurrency=concurrency)
        code = _show(opened, show) if show is not None else _verify(opened, grade, root, again, json=json)
    raise typer.Exit(code)


def _show(run: Run, cell: str) -> int:
    from detharness.eval.verify.showing import parse_cell, records_of
    from detharness.eval.verify.tables import reply_lines

    lines = [line for place, record in records_of(run, parse_cell(cell, run)) for line in reply_lines(place, record)]
    write_stdout("\n".join(lines) + "\n")
    return 0


def _verify(run: Run, grade: Path | None, root: str | None, again: Again | None, *, json: bool) -> int:
    from detharness.eval.grade.stored import GRADE, find_grade, read_grade
    from detharness.eval.verify.checking import pinned_by, verify_run
    from detharness.eval.verify.tables import print_verification
    from detharness.records.canonical import canonical_bytes
    from detharness.rendering.tables import make_console

    stored = find_grade(run.folder, GRADE) if grade is None else read_grade(grade)
    found = verify_run(run, None if stored is None else pinned_by(stored), root=root)
    asked = None if again is None else _ask_again(found.ledger, again)
    report = {**found.as_report(), "regenerated": None if asked is None else [result.as_row() for result in asked]}
    print_verification(make_console(), report)
    code = _exit_code(found.holds, asked)
    if json:
        write_stdout(canonical_bytes({**report, "exit_code": code}).decode() + "\n")
    return code


def _ask_again(ledger: Ledger, again: Again) -> list[Regenerated]:
    from detharness.eval.verify.reopening import ask_again
    from detharness.rendering.progress import show_progress
    from detharness.rendering.tables import make_console
    from detharness.targets.resolve_generation import resolve_generation

    return ask_again(
        ledger,
        again,
        lambda text, model, kernels, dtype: resolve_generation(text, model=model, kernels=kernels, dtype=dtype),
        lambda total: show_progress(make_console(), "ask again", total),
    )


def _exit_code(holds: bool, asked: list[Regenerated] | None) -> int:
    """What moved weighs more than what could not be tested; --regenerate without any cell to ask tested nothing."""
    outcomes = ["identical"] if asked is None else [result.outcome for result in asked]
    if not holds or "moved" in outcomes:
        return 1
    return 3 if "failed" in outcomes or not outcomes else 0
