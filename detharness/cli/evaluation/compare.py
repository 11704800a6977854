"""``detharness eval compare``: where two runs part, and why their scores differ."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from detharness.cli.exits import plain_errors, say, write_stdout


def compare(
    run_a: Annotated[Path, typer.Argument(metavar="RUN_A", help="The folder of the first run.")],
    run_b: Annotated[Path, typer.Argument(metavar="RUN_B", help="The folder of the second run.")],
    grade: Annotated[
        str, typer.Option(metavar="NAME", help="The grade to read: a folder's name in both runs.")
    ] = "grade",
    out: Annotated[Path | None, typer.Option(help="Output folder, new or empty. Default: a new one in runs/.")] = None,
    json: Annotated[bool, typer.Option("--json", help="End stdout with the report as one line of JSON.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Compare two runs cell by cell, and split the difference of their Pass@1 into causes that add up to it.

    A run without that grade is graded for the comparison, by the strict rules. Exit codes: 0 same outputs, 1 moved,
    2 usage, 130 interrupted.
    """
    with plain_errors(debug=debug):
        from detharness.eval.compare.command import compare_folders
        from detharness.eval.compare.tables import print_comparison
        from detharness.records.canonical import canonical_bytes
        from detharness.rendering.tables import make_console

        outcome = compare_folders(run_a, run_b, grade=grade, out=out)
        print_comparison(make_console(), outcome.comparison.report)
        say(f"Comparison and page: {outcome.folder}")
        code = 0 if outcome.comparison.same else 1
        if json:
            write_stdout(canonical_bytes({**outcome.comparison.report, "exit_code": code}).decode() + "\n")
    raise typer.Exit(code)
