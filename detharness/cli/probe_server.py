"""``detharness probe`` on somebody's running server, or on several launches of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from detharness.cli.exits import say, write_stdout
from detharness.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from detharness.probes.serving.launches import Launch
    from detharness.probes.serving.runner import Outcome
    from detharness.probes.serving.settings import ServerPlan, ServerSettings

_TIMEOUT = 600.0
_OF_THE_TARGET = ("header", "timeout", "tokenizer", "launches")


def probe_server(url: str, options: Mapping[str, Any], *, json: bool) -> int:
    """Probe the server at ``url`` as ``options`` say, print what was found, and return the exit code."""
    from detharness.probes.serving.settings import ServerSettings, prepare
    from detharness.targets.resolve_serving import check_serving

    if "model" not in options:
        raise UsageError("a server serves models by name: give --model")
    if options.get("timeout", _TIMEOUT) <= 0:
        raise UsageError(f"--timeout must be above 0, got {options['timeout']}")
    check_serving(url, options.get("header", ()))
    settings = ServerSettings(**{name: value for name, value in options.items() if name not in _OF_THE_TARGET})
    plan = prepare(settings)
    probe = _Probe(options)
    if "launches" in options:
        return probe.launches(url, settings, plan.nonce, json=json)
    return probe.one(url, plan, json=json)


class _Probe:
    """Probes with the same options of the target, shown on one console."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        from detharness.rendering.tables import make_console

        self._options = options
        self._console: Console = make_console()
        self._tokenizer: Callable[[str], tuple[int, ...]] | None = None
        if "tokenizer" in options:
            from detharness.targets.resolve_serving import local_tokenizer

            self._tokenizer = local_tokenizer(options["tokenizer"])

    def one(self, url: str, plan: ServerPlan, *, json: bool) -> int:
        """One server: its report, and the exit code."""
        from detharness.probes.serving.report import exit_code

        outcome = self._run(url, plan)
        say(f"Records and report: {outcome.folder}")
        code = exit_code(outcome.report, interrupted=outcome.interrupted)
        if json:
            _write(outcome.report, code)
        return code

    def launches(self, url: str, settings: ServerSettings, nonce: str, *, json: bool) -> int:
        """Several launches: the matrix, and the exit code."""
        from detharness.probes.serving.launches import read_launches, run_launches
        from detharness.probes.serving.settings import prepare
        from detharness.probes.serving.tables import print_launches

        def run(launch: Launch, own: ServerSettings) -> Outcome:
            say(f"Launch {launch.name}: {launch.url}" + (f", {launch.changed}" if launch.changed else ""))
            return self._run(launch.url, prepare(own))

        launches = read_launches(self._options["launches"], url, settings.model)
        folder, report, code = run_launches(launches, settings, nonce, run)
        print_launches(self._console, report)
        say(f"One run for each launch, to be read in pairs by detharness diff: {folder}")
        if json:
            _write(report, code)
        return code

    def _run(self, url: str, plan: ServerPlan) -> Outcome:
        from detharness.probes.serving.runner import Display, run
        from detharness.probes.serving.tables import print_capabilities, print_plan, print_report
        from detharness.rendering.progress import show_progress
        from detharness.targets.resolve_serving import check_serving, resolve_serving

        headers = self._options.get("header", ())
        check_serving(url, headers)
        print_plan(self._console, plan)
        display = Display(
            progress=lambda total: show_progress(self._console, "probe", total),
            capabilities=partial(print_capabilities, self._console),
            on_interrupt=lambda: say(
                "Sending nothing more, waiting for what is in flight; Ctrl-C again stops at once."
            ),
        )
        connect = partial(
            resolve_serving,
            url,
            plan.settings.model,
            api=plan.api,
            headers=headers,
            timeout=self._options.get("timeout", _TIMEOUT),
        )
        outcome = run(plan, connect, display, tokenizer=self._tokenizer)
        print_report(self._console, outcome.report)
        return outcome


def _write(report: Mapping[str, Any], code: int) -> None:
    from detharness.records.canonical import canonical_bytes

    write_stdout(canonical_bytes({**report, "exit_code": code}).decode() + "\n")
