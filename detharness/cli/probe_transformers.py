"""``detharness probe`` on transformers' own paths."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from detharness.cli.exits import say, write_stdout

if TYPE_CHECKING:
    from detharness.probes.paths.settings import PathPlan


def probe_transformers(target: str, options: Mapping[str, Any], *, json: bool) -> int:
    """Probe ``target`` as ``options`` say, print what was found, and return the exit code."""
    from detharness.probes.paths.settings import PathSettings, prepare
    from detharness.targets.resolve import resolve_paths

    return _run(prepare(PathSettings(target=target, **options), resolve_paths), json=json)


def _run(plan: PathPlan, *, json: bool) -> int:
    from detharness.probes.paths.runner import run
    from detharness.probes.report import exit_code
    from detharness.probes.tables import print_report
    from detharness.records.canonical import canonical_bytes
    from detharness.rendering.progress import show_progress
    from detharness.rendering.tables import make_console

    console = make_console()
    outcome = run(
        plan,
        lambda total: show_progress(console, "probe", total),
        lambda: say("Stopping after this play; Ctrl-C again stops at once."),
    )
    print_report(console, outcome.report)
    say(f"Records and report: {outcome.folder}")
    code = exit_code(outcome.report, interrupted=outcome.interrupted)
    if json:
        write_stdout(canonical_bytes({**outcome.report, "exit_code": code}).decode() + "\n")
    return code
