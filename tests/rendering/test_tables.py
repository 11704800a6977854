"""Tables: escaped cells, no markup, stdout kept for data, full width in a pipe."""

import io
import sys

import pytest
from rich.console import Console

from detharness.rendering.tables import make_console, make_table


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.fixture
def streams(monkeypatch):
    """Replace stdout and stderr; returns a function that says which of them are terminals."""
    for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "40")

    def replace(*, out: bool, err: bool) -> tuple[io.StringIO, io.StringIO]:
        pair = (Terminal() if out else io.StringIO(), Terminal() if err else io.StringIO())
        monkeypatch.setattr(sys, "stdout", pair[0])
        monkeypatch.setattr(sys, "stderr", pair[1])
        return pair

    return replace


TABLE = make_table(
    ["prompt", "unique", "verdict", "gap"],
    [["[red]\x1b[31mhi\n:smile: https://a.b/" + "x" * 200, 3, "diverged", None]],
    title="[b]probe[/b]\n",
)


@pytest.mark.parametrize("err_is_terminal", [False, True])
def test_a_piped_stdout_gets_no_table(streams, err_is_terminal):
    out, err = streams(out=False, err=err_is_terminal)
    make_console().print(TABLE)
    assert out.getvalue() == ""
    assert "diverged" in err.getvalue()


def test_in_a_pipe_rows_are_whole_and_plain(streams):
    _, err = streams(out=False, err=False)
    make_console().print(TABLE)
    row = next(line for line in err.getvalue().splitlines() if "diverged" in line)
    assert r"[red]\x1b[31mhi\n:smile: https://a.b/" + "x" * 200 in row
    assert "\x1b" not in err.getvalue()
    assert r"[b]probe[/b]\n" in err.getvalue()


def test_on_a_terminal_the_verdict_is_coloured_and_nothing_is_cut_off(streams):
    out, err = streams(out=True, err=True)
    make_console().print(TABLE)
    assert err.getvalue() == ""
    assert "\x1b[31mdiverged" in out.getvalue().replace("\x1b[0m", "")
    assert out.getvalue().count("x") == 200 + r"\x1b".count("x")


def test_no_color_is_honoured(streams, monkeypatch):
    out, _ = streams(out=True, err=True)
    monkeypatch.setenv("NO_COLOR", "1")
    make_console().print(TABLE)
    assert "\x1b[31m" not in out.getvalue()


def test_numbers_stand_right_and_none_is_a_dash():
    stream = io.StringIO()
    Console(file=stream, width=80).print(make_table(["name", "count"], [["a", 1], ["b", None], ["c", 1000]]))
    cells = [line.split("│")[2] for line in stream.getvalue().splitlines() if line.count("│") == 3]
    assert cells == ["     1 ", "     - ", "  1000 "]


@pytest.mark.parametrize("row", [["a"], ["a", 1, 2]])
def test_a_row_of_another_length_is_an_error(row):
    with pytest.raises(ValueError, match="cells in a table of 2 columns"):
        make_table(["name", "count"], [row])
