"""Progress: few plain lines in a log, a bar on a terminal, and no text from outside unescaped."""

import io

import pytest
from rich.console import Console

from detharness.rendering.progress import show_progress


@pytest.mark.parametrize(("total", "lines"), [(1, 1), (4, 4), (10, 10), (237, 10)])
def test_a_log_gets_a_few_lines_and_the_last_one(total, lines):
    stream = io.StringIO()
    with show_progress(Console(file=stream, width=200), "probe", total) as advance:
        for number in range(total):
            advance(f"trial\x1b {number}")
    written = stream.getvalue().splitlines()
    assert len(written) == lines
    assert written[-1] == rf"probe: {total}/{total}, about 0 s left (trial\x1b {total - 1})"


def test_a_log_line_says_how_long_it_takes(monkeypatch):
    clock = iter([100.0, 102.0, 105.0])
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    stream = io.StringIO()
    with show_progress(Console(file=stream, width=200), "probe", 4) as advance:
        advance("a")
        advance("b")
    assert stream.getvalue().splitlines() == ["probe: 1/4, about 6 s left (a)", "probe: 2/4, about 5 s left (b)"]


def test_a_terminal_gets_a_bar():
    stream = io.StringIO()
    console = Console(file=stream, width=100, force_terminal=True, color_system=None)
    with show_progress(console, "probe", 2) as advance:
        advance("[b]one\x1b[2J")
        advance("two")
    assert "2/2" in stream.getvalue()
    assert "probe: two" in stream.getvalue()
    assert "\x1b[2J" not in stream.getvalue()
