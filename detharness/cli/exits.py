"""How commands end: plain sentences for what a person can mend, one exit code for each kind of end."""

from __future__ import annotations

import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

import typer

from detharness.errors import BackendWarning, DetharnessError

USAGE = 2
INTERRUPTED = 130


@contextmanager
def plain_errors(*, debug: bool) -> Iterator[None]:
    """Turn a ``DetharnessError`` into its sentence on stderr and exit 2, Ctrl-C into exit 130.

    ``debug`` prints the traceback in place of the sentence. Any other exception is a bug of ours and keeps it anyway.
    A ``BackendWarning`` is printed as its sentence alone.
    """
    shown = warnings.showwarning

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if issubclass(category, BackendWarning):
            print(f"Warning: {message}", file=sys.stderr)
        else:
            shown(message, category, filename, lineno, file, line)

    try:
        with warnings.catch_warnings():
            warnings.showwarning = show
            yield
    except DetharnessError as error:
        if debug:
            traceback.print_exc()
        else:
            print(f"Error: {error}", file=sys.stderr)
        raise typer.Exit(USAGE) from None
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
