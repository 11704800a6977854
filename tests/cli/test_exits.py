"""How commands end when a stream fails: with 2, never with 1, which means that replies moved."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import typer
from detharness.cli.exits import plain_errors, write_stdout
from detharness.errors import UsageError
from detharness.rendering.tables import make_console

def command():
    with plain_errors(debug=False):
        {}

typer.run(command)
"""
REPORT = "write_stdout('x' * 9)"
TABLE = "make_console().print('x')"
SENTENCE = "raise UsageError('wrong')"


def full():
    return os.open("/dev/full", os.O_WRONLY)


def left():
    """A pipe whose reader is gone."""
    reader, writer = os.pipe()
    os.close(reader)
    return writer


def ended(body, **streams):
    done = subprocess.run([sys.executable, "-c", PROGRAM.format(body)], text=True, check=False, **streams)
    for descriptor in streams.values():
        if descriptor >= 0:
            os.close(descriptor)
    return done


@pytest.mark.parametrize("stdout", [full, left])
def test_a_report_that_stdout_does_not_take_is_one_sentence(stdout):
    done = ended(REPORT, stdout=stdout(), stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("Error: cannot write to stdout")


@pytest.mark.parametrize("body", [TABLE, SENTENCE])
@pytest.mark.parametrize("stderr", [full, left])
def test_a_stderr_that_takes_nothing_ends_with_2(body, stderr):
    assert ended(body, stdout=subprocess.PIPE, stderr=stderr()).returncode == 2


def test_a_closed_stdout_is_said():
    closed = ["bash", "-c", 'exec "$0" -c "$1" >&-', sys.executable, PROGRAM.format(REPORT)]
    done = subprocess.run(closed, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "Error: cannot write to stdout, which is closed: the report is in the output folder\n"


def test_names_from_outside_reach_the_terminal_escaped():
    done = ended(r"raise UsageError('no file \x1b[31mred\u202e, got ' + repr('a\\b'))", stderr=subprocess.PIPE)
    assert done.stderr == "Error: no file \\x1b[31mred\\u202e, got 'a\\\\b'\n"


def test_a_backend_warning_is_said_once():
    body = "import warnings as w; from detharness.errors import BackendWarning as B; "
    body += "[(w.simplefilter('always'), w.warn('slow', B)) for arm in range(2)]"
    assert ended(body, stderr=subprocess.PIPE).stderr == "Warning: slow\n"


def test_a_fault_of_ours_ends_with_70_and_its_traceback(monkeypatch, capsys):
    import detharness.cli as cli

    def broken() -> None:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(cli, "_app", broken)
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 70
    assert "ZeroDivisionError: ours" in capsys.readouterr().err
