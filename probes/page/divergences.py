"""Where replies part: the common text, then both continuations, and what the margin there says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from detharness.probes.page.blocks import each_arm, flat_rows, more, wide_table
from detharness.probes.page.sentences import margin_sentence, number, place
from detharness.rendering.html import Html, excerpt, tag

_OPEN = 3  # Contexts of an arm that are seen at once,
_SHOWN = 42  # and those of all arms that are there at all.
_ROWS = 240
_TEXT_BYTES = 400
_NAME_BYTES = 120


def divergence_blocks(report: Mapping[str, Any]) -> list[Html]:
    """For each arm in which tokens parted: contexts of some, each prompt and axis first, and a table of all."""
    found = []
    cap, contexts_shown = each_arm(report, _ROWS), each_arm(report, _SHOWN)
    for arm in report["arms"]:
        rows = arm["divergences"]
        if not rows:
            continue
        shown = varied(rows, contexts_shown)
        head = excerpt(f"{arm['name']} ({arm['role']}): {len(rows)} different places", _NAME_BYTES)
        table = tag("details", tag("summary", "all in a table"), _table(rows[:cap]), *more(len(rows) - cap, "places"))
        contexts = [_context(row) for row in shown]
        found += [tag("h3", head), *contexts[:_OPEN]]
        if len(contexts) > _OPEN:
            folded = tag("summary", f"{len(contexts) - _OPEN} more of them")
            found.append(tag("details", folded, *contexts[_OPEN:]))
        found.append(table)
    return found


def varied(rows: Sequence[Mapping[str, Any]], count: int) -> list[Mapping[str, Any]]:
    """``count`` rows: the first of each prompt and axis, then others, in their order."""
    firsts: dict[tuple[str, Any], int] = {}
    for index, row in enumerate(rows):
        firsts.setdefault((row["prompt"], row["axis"]), index)
    taken = set(firsts.values())
    later = [index for index in range(len(rows)) if index not in taken]
    return [rows[index] for index in sorted([*firsts.values(), *later][:count])]


def _context(row: Mapping[str, Any]) -> Html:
    axis = "several things at once" if row["axis"] is None else row["axis"]
    head = f"{row['prompt']}, {axis} ({row['level']}): {place(row)} of the reply, by {row['method']}"
    context = row["context"]
    parts = [tag("h4", excerpt(head, 2 * _NAME_BYTES)), tag("p", margin_sentence(row))]
    if row["forced"] is not None:
        told = "; ".join(f"{name}: {value}" for name, value in flat_rows(row["forced"]))
        parts.append(tag("p", f"Teacher-forced by the server: {excerpt(told, _TEXT_BYTES)}."))
    if context is not None:
        common = excerpt(context["common"], _TEXT_BYTES, head=0.0)
        sides = [_side("reference", common, context["reference"]), _side("with this varied", common, context["other"])]
        parts.append(tag("div", *sides, class_="sides"))
    return tag("article", *parts)


def _side(title: str, common: str, continuation: str) -> Html:
    text = tag("mark", excerpt(continuation, _TEXT_BYTES) or "[ends here, or other tokens spell the same]")
    return tag("section", tag("h4", title), tag("pre", common, text))


def _table(rows: Sequence[Mapping[str, Any]]) -> Html:
    columns = (
        "prompt",
        "axis",
        "level",
        "seen",
        "prompt tokens",
        "place",
        "method",
        "margin",
        "rank",
        "median margin",
        "drift, median",
        "drift, most",
        "class",
    )
    cells = [
        (
            excerpt(row["prompt"], _NAME_BYTES),
            row["axis"] or "several",
            excerpt(row["level"], _NAME_BYTES),
            str(row["count"]),
            "-" if row["prompt_tokens"] is None else str(row["prompt_tokens"]),
            place(row),
            row["method"],
            number(row["margin"]),
            "-" if row["margin_rank"] is None else "{} of {}".format(*row["margin_rank"]),
            number(row["median_margin"]),
            number(row["drift_median"]),
            number(row["drift_max"]),
            row["divergence_class"] or "-",
        )
        for row in rows
    ]
    return wide_table(columns, cells, label="divergences")
