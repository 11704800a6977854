"""How commands end: plain sentences for what a person can mend, one exit code for each kind of end."""

from __future__ import annotations

import errno
import os
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

import typer

from detharness.errors import BackendWarning, DetharnessError, UsageError

USAGE = 2
INTERNAL = 70  # sysexits.h: an internal software error.
INTERRUPTED = 130

# A full or broken stream; files that cannot be written are a UsageError long before they come here.
_STREAM_ERRORS = frozenset({errno.EPIPE, errno.ENOSPC, errno.EIO})


def say(sentence: str) -> None:
    """Print one sentence on stderr, names from outside in it escaped; a stderr that takes nothing is let be."""
    from detharness.rendering.escape import one_line

    with suppress(OSError):
        print(one_line(sentence), file=sys.stderr)


def write_stdout(text: str) -> None:
    """Write ``text`` to stdout whole; UsageError where it is closed, full, or a pipe whose reader left."""
    if sys.stdout is None:
        raise UsageError("cannot write to stdout, which is closed: the report is in the output folder")
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        # What could not be written is still buffered: at exit Python would fail on it again, with a code of its own.
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        raise UsageError(f"cannot write to stdout ({error.strerror}): the report is in the output folder") from None


@contextmanager
def plain_errors(*, debug: bool) -> Iterator[None]:
    """Turn a ``DetharnessError`` into its sentence on stderr and exit 2, Ctrl-C into exit 130.

    ``debug`` prints the traceback in place of the sentence. Any other exception is a bug of ours and keeps it anyway.
    A ``BackendWarning`` is printed as its sentence alone, once: each arm asks for its kernels anew.
    """
    shown = warnings.showwarning
    said: set[str] = set()

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if issubclass(category, BackendWarning):
            if str(message) not in said:
                said.add(str(message))
                say(f"Warning: {message}")
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
            say(f"Error: {error}")
        raise typer.Exit(USAGE) from None
    except KeyboardInterrupt:
        say("Interrupted.")
        raise typer.Exit(INTERRUPTED) from None
    except OSError as error:
        if error.errno not in _STREAM_ERRORS:
            raise
        say(f"Error: cannot write to stderr: {error.strerror}")
        raise typer.Exit(USAGE) from None
