"""Tables: escaped cells, no markup, stdout kept for data, full width in a pipe."""

import io
import sys

import pytest
from rich.console import Console

from detharness.rendering.tables import fitting_table, make_console, make_table


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


COLUMNS = ("prompt", "silent", "first divergence", "the reply's own words")
ROWS = [("alpha", None, 3, "several words, and more of them"), ("beta", None, None, "other words")]


def printed(table, width):
    stream = io.StringIO()
    Console(file=stream, width=width, color_system=None).print(table)
    return stream.getvalue()


@pytest.mark.parametrize("width", [10, 30, 40, 60, 80, 10_000])
def test_a_fitting_table_fits_and_breaks_no_word(width):
    text = printed(fitting_table(width, COLUMNS, ROWS), width)
    assert all(len(line.rstrip()) <= width for line in text.splitlines())
    for word in ("prompt", "alpha", "beta"):
        assert word in text
    assert "silent" not in text  # No row says anything in it.
    shown, _, left_out = " ".join(text.split()).partition("no room for:")
    for name, word in (("first divergence", "divergence"), ("the reply's own words", "several")):
        assert (word in shown) != (name in left_out)


def test_a_fitting_table_is_whole_in_a_pipe_and_on_one_line_a_row():
    text = printed(fitting_table(10_000, COLUMNS, ROWS), 10_000)
    assert "│ alpha  │                3 │ several words, and more of them │" in text
    assert "no room" not in text


def test_a_fitting_table_folds_a_word_longer_than_any_column():
    text = printed(fitting_table(60, ("name", "count"), [("x" * 200, 1)]), 60)
    assert text.count("x") == 200
    assert "│     1 │" in text


def test_a_fitting_table_counts_the_cells_of_wide_characters_and_escapes():
    text = printed(fitting_table(40, ("name", "count"), [("漢字" * 5, 1), ("\x1b[31m", 2)]), 40)
    assert "漢字" * 5 in text
    assert r"\x1b[31m" in text


def test_a_fitting_table_without_rows_keeps_its_head():
    assert "prompt" in printed(fitting_table(80, COLUMNS, []), 80)
