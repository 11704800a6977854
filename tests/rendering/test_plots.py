"""Plots: what they draw, and what they say to who does not see them."""

from __future__ import annotations

import itertools
import xml.etree.ElementTree as ElementTree

import pytest

from detharness.rendering.plots import Step, interval_bar, step_plot

HOSTILE = "</title><script>alert(1)</script>\x1b[31m"


def drawn(svg):
    return ElementTree.fromstring(svg)


def points(figure, kind):
    (line,) = (element for element in figure if element.get("class") == kind)
    return [tuple(float(number) for number in pair.split(",")) for pair in line.get("points").split()]


def test_a_curve_starts_at_one_and_steps_down_where_a_share_falls():
    figure = drawn(
        step_plot("s", [Step(4, 0.5, 0.2, 0.8), Step(9, 0.5, 0.2, 0.8)], title="t", description="d", x_label="x")
    )
    curve = points(figure, "curve")
    xs, ys = zip(*curve, strict=True)
    assert list(xs) == sorted(xs)
    top, middle = ys[0], ys[-1]
    assert set(ys) == {top, middle}
    # Half way down the axis, and four tenths along it: the last token, 9, is drawn to its end, 10.
    grid = [float(element.get("y1")) for element in figure if element.get("class") == "grid"]
    assert middle == pytest.approx((min(grid) + max(grid)) / 2, abs=0.1)
    fall = next(x for x, y in curve if y == middle)
    assert (fall - xs[0]) / (xs[-1] - xs[0]) == pytest.approx(0.4, abs=0.01)


def test_the_band_holds_the_curve():
    steps = [Step(0, 0.9, 0.7, 0.95), Step(3, 0.4, 0.2, 0.6), Step(20, 0.4, 0.2, 0.6)]
    figure = drawn(step_plot("s", steps, title="t", description="d", x_label="x"))
    curve, band = points(figure, "curve"), points(figure, "band")
    lower, upper = band[: len(curve)], band[len(curve) :][::-1]
    for (x, y), (low_x, low_y), (high_x, high_y) in zip(curve, lower, upper, strict=True):
        assert x == low_x == high_x
        assert high_y <= y <= low_y  # SVG counts down the page.


def test_a_plot_is_an_image_with_a_title_and_a_description():
    figure = drawn(step_plot("s1", [Step(3, 1.0, 0.9, 1.0)], title="the title", description="in words", x_label="x"))
    assert figure.get("role") == "img"
    texts = {element.get("id"): element.text for element in figure if element.tag in ("title", "desc")}
    assert [texts[name] for name in figure.get("aria-labelledby").split()] == ["the title", "in words"]


def test_text_from_outside_stays_text():
    figure = drawn(step_plot("s", [Step(3, 1.0, 0.9, 1.0)], title=HOSTILE, description=HOSTILE, x_label=HOSTILE))
    assert "script" not in {element.tag for element in figure.iter()}
    assert "\x1b" not in "".join(figure.itertext())


@pytest.mark.parametrize("end", [1, 2, 5, 7, 48, 99, 1000, 1024])
def test_ticks_are_few_round_and_within_the_axis(end):
    figure = drawn(step_plot("s", [Step(end - 1, 1.0, 0.9, 1.0)], title="t", description="d", x_label="x"))
    ticks = [int(e.text) for e in figure if e.get("class") == "tick-x" and e.text.isdigit()]
    assert ticks[0] == 0
    assert 2 <= len(ticks) <= 6
    assert ticks[-1] <= end
    assert len({b - a for a, b in itertools.pairwise(ticks)}) == 1


def test_nothing_cannot_be_drawn():
    with pytest.raises(ValueError, match="at least one step"):
        step_plot("s", [], title="t", description="d", x_label="x")


def test_a_bar_is_as_long_as_its_share_and_is_silent():
    figure = drawn(interval_bar(0.25, 0.1, 0.5))
    assert figure.get("aria-hidden") == "true"
    whole, bar = (float(element.get("width")) for element in figure if element.tag == "rect")
    assert bar == whole / 4
    whisker = next(element for element in figure if element.tag == "line")
    assert (float(whisker.get("x1")), float(whisker.get("x2"))) == (whole / 10, whole / 2)
