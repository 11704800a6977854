"""Plots as SVG markup of our own: they follow the page's colours, need no library, and can be read without being seen.

Every plot has a title and a description for who does not see it; the numbers belong in a table beside it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from detharness.rendering.html import Html, tag

_WIDTH, _HEIGHT = 360, 210  # Drawn one to one on a phone, larger on a desktop: text stays readable on both.
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 12, 10, 36
_BAR_WIDTH, _BAR_HEIGHT = 120, 14


@dataclass(frozen=True)
class Step:
    """From ``x`` on the share is ``share``, with an interval from ``low`` to ``high``; all between 0 and 1."""

    x: int
    share: float
    low: float
    high: float


def step_plot(name: str, steps: Sequence[Step], *, title: str, description: str, x_label: str) -> Html:
    """A share that starts at 1 and falls in ``steps``, over an interval band. ``name`` is unique on its page.

    ``steps``: ascending in x, the last at the end of the axis; ValueError when there is none.
    """
    if not steps:
        raise ValueError("a plot needs at least one step")
    end = steps[-1].x + 1  # A step at token t is drawn where t begins; the last token has its width, too.
    corners = [(0.0, 1.0, steps[0].low, 1.0)]
    for step in steps:
        _, share, low, high = corners[-1]
        corners += [(step.x, share, low, high), (step.x, step.share, step.low, step.high)]
    _, share, low, high = corners[-1]
    corners.append((end, share, low, high))
    curve = " ".join(f"{_x(x, end)},{_y(share)}" for x, share, _, _ in corners)
    band = [f"{_x(x, end)},{_y(low)}" for x, _, low, _ in corners]
    band += [f"{_x(x, end)},{_y(high)}" for x, _, _, high in reversed(corners)]
    drawn = [
        *_axes(end, x_label),
        tag("polygon", points=" ".join(band), class_="band"),
        tag("polyline", points=curve, class_="curve"),
    ]
    return tag(
        "svg",
        tag("title", title, id=f"{name}-title"),
        tag("desc", description, id=f"{name}-text"),
        *drawn,
        class_="plot",
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        role="img",
        aria_labelledby=f"{name}-title {name}-text",
    )


def interval_bar(share: float, low: float, high: float) -> Html:
    """A share between 0 and 1 as a bar with its interval as whiskers; the numbers stand in the table it is for."""
    middle = _BAR_HEIGHT / 2
    low_x, high_x = (round(value * _BAR_WIDTH, 1) for value in (low, high))
    parts = [
        _rect(0, 3, _BAR_WIDTH, _BAR_HEIGHT - 6, "bar-all"),
        _rect(0, 3, round(share * _BAR_WIDTH, 1), _BAR_HEIGHT - 6, "bar"),
        _line(low_x, middle, high_x, middle, "whisker"),
        *(_line(x, 2, x, _BAR_HEIGHT - 2, "whisker") for x in (low_x, high_x)),
    ]
    return tag("svg", *parts, class_="bars", viewBox=f"0 0 {_BAR_WIDTH} {_BAR_HEIGHT}", aria_hidden="true")


def _axes(end: int, x_label: str) -> list[Html]:
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    drawn = []
    for quarter in range(5):
        y = _y(quarter / 4)
        drawn.append(_line(_LEFT, y, right, y, "grid"))
        drawn.append(tag("text", f"{25 * quarter} %", x=str(_LEFT - 4), y=str(y + 4), class_="tick-y"))
    for value in _ticks(end):
        drawn.append(_line(_x(value, end), bottom, _x(value, end), bottom + 4, "tick"))
        drawn.append(tag("text", f"{value}", x=str(_x(value, end)), y=str(bottom + 15), class_="tick-x"))
    middle = (_LEFT + right) / 2
    return [*drawn, tag("text", x_label, x=str(middle), y=str(_HEIGHT - 6), class_="tick-x")]


def _ticks(end: int) -> list[int]:
    """At most six round numbers from 0 to ``end``."""
    step = next(
        digit * 10**power for power in itertools.count() for digit in (1, 2, 5) if end // (digit * 10**power) <= 5
    )
    return list(range(0, end + 1, step))


def _x(value: float, end: int) -> float:
    return round(_LEFT + value / end * (_WIDTH - _LEFT - _RIGHT), 1)


def _y(share: float) -> float:
    return round(_TOP + (1 - share) * (_HEIGHT - _TOP - _BOTTOM), 1)


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> Html:
    return tag("line", x1=str(x1), y1=str(y1), x2=str(x2), y2=str(y2), class_=kind)


def _rect(x: float, y: float, width: float, height: float, kind: str) -> Html:
    return tag("rect", x=str(x), y=str(y), width=str(width), height=str(height), class_=kind)
