"""The command line: one module per command, each of which parses, calls and renders.

Everything but ``errors`` is imported inside functions, so that ``--help`` answers at once and loads no torch.
"""

from __future__ import annotations

import signal
import sys
import traceback

import typer

from detharness.cli.doctor import doctor
from detharness.cli.evaluation import evaluation
from detharness.cli.exits import INTERNAL, INTERRUPTED
from detharness.cli.probe import probe

_app = typer.Typer(
    name="detharness",
    help="The determinism harness for LLM inference: does other people's traffic change a reply?",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _show_version(asked: bool) -> None:
    if asked:
        from detharness import __version__

        typer.echo(f"detharness {__version__}")
        raise typer.Exit


@_app.callback()
def _options(
    version: bool = typer.Option(
        False, "--version", help="Print the version and exit.", callback=_show_version, is_eager=True
    ),
) -> None:
    """Options before a command."""


_app.command("probe")(probe)
_app.add_typer(evaluation)
_app.command("doctor")(doctor)


def main() -> None:
    """Run the command line; exits with the codes of docs/architecture.md.

    A fault of ours keeps its traceback and ends with 70, since Python's own 1 would say that the subject moved.
    """
    try:
        _app()
    except Exception:
        traceback.print_exc()
        sys.exit(INTERNAL)
    except SystemExit as end:
        if end.code == INTERRUPTED:  # One more Ctrl-C would only break into the interpreter's own clearing up.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise
