"""``detharness probe`` on the reference engine."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from detharness.cli.exits import say, write_stdout

if TYPE_CHECKING:
    from detharness.probes.settings import Plan


def probe_engine(target: str, options: Mapping[str, Any], *, json: bool) -> int:
    """Probe ``target`` as ``options`` say, print what was found, and return the exit code."""
    from detharness.probes.settings import ProbeSettings, prepare
    from detharness.targets.resolve import resolve_target

    settings = {name: value for name, value in options.items() if name != "strict"}
    strict = options.get("strict", False)
    return _run(prepare(ProbeSettings(target=target, **settings), partial(resolve_target, strict=strict)), json=json)


def _run(plan: Plan, *, json: bool) -> int:
    from rich.text import Text

    from detharness.probes.causes.sentences import cause_lines
    from detharness.probes.report import exit_code
    from detharness.probes.runner import run
    from detharness.probes.tables import print_report
    from detharness.records.canonical import canonical_bytes
    from detharness.rendering.escape import visible
    from detharness.rendering.progress import show_progress
    from detharness.rendering.tables import make_console

    console = make_console()
    outcome = run(
        plan,
        lambda total: show_progress(console, "probe", total),
        lambda: say("Stopping after this trial; Ctrl-C again stops at once."),
    )
    print_report(console, outcome.report)
    for line in cause_lines(outcome.report["causes"]):
        console.print(Text(visible(line)))
    say(f"Records and report: {outcome.folder}")
    code = exit_code(outcome.report, interrupted=outcome.interrupted)
    if json:
        write_stdout(canonical_bytes({**outcome.report, "exit_code": code}).decode() + "\n")
    return code
