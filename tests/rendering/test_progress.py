"""Progress: few plain lines in a log, a bar on a terminal, and no text from outside unescaped."""

import io

import pytest
from rich.console import Console

from detharness.rendering.progress import Tally, show_lanes, show_progress


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


def lanes(done, *, left, errors=0, tokens=0):
    return Tally({"text": (done, 20), "image": (0, 2)}, left, errors, tokens)


def test_a_log_gets_every_kind_of_work_with_its_speed_and_the_time_left():
    now = 0.0
    stream = io.StringIO()
    with show_lanes(Console(file=stream, width=200), "generate", lanes(10, left=10), clock=lambda: now) as draw:
        for done in range(11, 21):
            now += 4.0
            draw(lanes(done, left=20 - done, errors=1, tokens=(done - 10) * 8))
    written = stream.getvalue().splitlines()
    assert len(written) == 10
    assert written[0] == "generate: text 11/20, image 0/2; 2 tokens/s, 1 errors, about 36 s left"
    assert written[-1] == "generate: text 20/20, image 0/2; 2 tokens/s, 1 errors, about 0 s left"


def test_a_log_is_not_silent_for_long_and_knows_nothing_before_anything_ended():
    now = 0.0
    stream = io.StringIO()
    with show_lanes(Console(file=stream, width=200), "generate", lanes(0, left=1000), clock=lambda: now) as draw:
        for _ in range(9):
            now += 20.0
            draw(lanes(0, left=1000))
    assert (
        stream.getvalue().splitlines()
        == ["generate: text 0/20, image 0/2; 0 tokens/s, 0 errors, time left unknown"] * 3
    )


def test_a_terminal_gets_a_bar_for_each_kind_of_work():
    stream = io.StringIO()
    console = Console(file=stream, width=120, force_terminal=True, color_system=None)
    with show_lanes(console, "generate\x1b[2J", lanes(0, left=22)) as draw:
        draw(lanes(20, left=2, errors=3, tokens=7))
    assert "20/20" in stream.getvalue()
    assert "0/2" in stream.getvalue()
    assert "3 errors" in stream.getvalue()
    assert "\x1b[2J" not in stream.getvalue()
