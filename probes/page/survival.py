"""How long replies stay the same: a curve for each arm, in words for who does not see it, and its numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from detharness.probes.page.blocks import each_arm, more, wide_table
from detharness.probes.page.sentences import percent
from detharness.rendering.html import Html, excerpt, tag
from detharness.rendering.plots import Step, step_plot

_ROWS = 600
_NAME_BYTES = 120


def survival_figures(report: Mapping[str, Any]) -> list[Html]:
    """A figure for each arm in which tokens were compared."""
    rows = each_arm(report, _ROWS)
    figures = [_figure(number, arm, rows) for number, arm in enumerate(report["arms"]) if arm["statistics"]["survival"]]
    if not figures:
        return []
    said = (
        "Share of comparisons in which every token up to here is the same as in the reply to the question asked alone. "
        "The band is a 95 % interval at each token by itself; n is the number of comparisons."
    )
    return [tag("p", said), tag("div", *figures, class_="plots")]


def _figure(number: int, arm: Mapping[str, Any], shown: int) -> Html:
    points = arm["statistics"]["survival"]
    name = excerpt(f"{arm['name']} ({arm['role']})", _NAME_BYTES)
    words = curve_words(points, arm["statistics"]["trials"])
    steps = [Step(point["token"], point["share"], point["low"], point["high"]) for point in points]
    plot = step_plot(
        f"survival-{number}", steps, title=f"Identical so far, {name}", description=words, x_label="token of the reply"
    )
    columns = ("token", "compared there", "parted there", "same so far", "95 % interval")
    rows = [
        (
            str(point["token"]),
            str(point["at_risk"]),
            str(point["diverged"]),
            percent(point["share"]),
            f"{percent(point['low'])} to {percent(point['high'])}",
        )
        for point in points
    ]
    return tag(
        "figure",
        tag("figcaption", f"{name}, n = {arm['statistics']['trials']}"),
        plot,
        tag("p", words),
        tag(
            "details",
            tag("summary", "the numbers"),
            wide_table(columns, rows[:shown], label="survival", texts=0),
            *more(len(rows) - shown, "tokens"),
        ),
    )


def curve_words(points: Sequence[Mapping[str, Any]], trials: int) -> str:
    """The curve in a sentence."""
    last, parted = points[-1], [point for point in points if point["diverged"]]
    if not parted:
        return (
            f"All {trials} comparisons stayed the same through token {last['token']}; {last['at_risk']} reached it "
            f"(share at least {percent(last['low'])}, 95 % confidence)."
        )
    first = parted[0]["token"]
    half = next((point["token"] for point in parted if point["share"] <= 0.5), first)
    middle = "" if half == first else f" Half of them have parted by token {half}."
    return (
        f"The first of {trials} comparisons parts at token {first}.{middle} {percent(last['share'])} "
        f"({percent(last['low'])} to {percent(last['high'])}) stay the same through token {last['token']}."
    )
