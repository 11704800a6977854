"""Pieces that every part of a page is built of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from detharness.rendering.html import Html, excerpt, tag

_MARKS = {
    "identical": ("●", "good"),
    "works": ("●", "good"),
    "diverged": ("✕", "bad"),
    "ignored": ("✕", "bad"),
    "absent": ("○", "blank"),
    "not_tested": ("□", "warn"),
}
_KEYS = 120
_NAME_BYTES = 120
_VALUE_BYTES = 250
_SENTENCES = 50
_SENTENCE_BYTES = 600

# Caps on this page, by rows and bytes, are so that the worst of texts (quotes, six bytes each) leaves it below 5 MB.


def marked(status: str, text: str | None = None) -> Html:
    """A status by shape, colour and word; ``text`` stands for the word where it says more."""
    glyph, colour = _MARKS.get(status, ("◆", "other"))
    return tag("span", f"{glyph} {status.replace('_', ' ') if text is None else text}", class_=colour)


def verdict_badge(verdict: str) -> Html:
    """The verdict of the run, to be seen first."""
    glyph, colour = _MARKS.get(verdict, ("◆", "other"))
    return tag("span", f"{glyph} {verdict.replace('_', ' ').upper()}", class_=f"badge {colour}")


def section(title: str, content: Sequence[Html]) -> Html:
    """A heading and what is below it; nothing at all where there is no content."""
    return Html("\n".join([tag("h2", title), *content])) if content else Html("")


def wide_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, label: str, texts: int = 1) -> Html:
    """A table that scrolls in its own frame where the screen is narrow. The first ``texts`` columns may wrap."""

    def line(name: str, cells: Sequence[str]) -> Html:
        made = (tag(name, cell, **_kind(index, texts)) for index, cell in enumerate(cells))
        return tag("tr", *made)

    body = tag("tbody", *(line("td", row) for row in rows))
    table = tag("table", tag("thead", line("th", columns)), body)
    return tag("div", table, class_="wide", role="region", aria_label=label, tabindex="0")


def each_arm(report: Mapping[str, Any], cap: int) -> int:
    """The share of each arm in what a page holds of something."""
    return max(1, cap // max(1, len(report["arms"])))


def sentence_list(sentences: Sequence[str]) -> list[Html]:
    """Sentences of the report, one below the other."""
    lines = [tag("li", excerpt(line, _SENTENCE_BYTES)) for line in sentences[:_SENTENCES]]
    return [tag("ul", *lines), *more(len(sentences) - _SENTENCES, "sentences")]


def key_table(rows: Sequence[tuple[str, str]], keys: int = _KEYS) -> Html:
    """Names and values; long ones are cut, and those beyond ``keys`` left out."""
    cut = [(excerpt(name, _NAME_BYTES), excerpt(value, _VALUE_BYTES)) for name, value in rows[:keys]]
    if len(rows) > keys:
        cut.append(("...", f"{len(rows) - keys} more are in report.json"))
    return tag(
        "table", tag("tbody", *(tag("tr", tag("th", name, scope="row"), tag("td", value)) for name, value in cut))
    )


def flat_rows(value: object, name: str = "") -> list[tuple[str, str]]:
    """Nested JSON as (dotted name, value) rows, in order of name."""
    if isinstance(value, Mapping) and value:
        rows = (flat_rows(value[key], f"{name}.{key}" if name else str(key)) for key in sorted(value))
        return [row for part in rows for row in part]
    return [(name, plain(value))]


def plain(value: Any) -> str:
    """A JSON value as a person writes it."""
    if isinstance(value, list | tuple):
        return ", ".join(plain(item) for item in value) or "none"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {plain(item)}" for key, item in sorted(value.items())) or "none"
    return (
        {None: "-", True: "yes", False: "no"}.get(value, str(value)) if isinstance(value, bool | None) else str(value)
    )


def more(left_out: int, what: str) -> list[Html]:
    """A note on what a page does not hold; nothing where it holds all."""
    return [tag("p", f"{left_out} more {what} are in report.json.")] if left_out > 0 else []


def _kind(index: int, texts: int) -> dict[str, str]:
    return {"class_": "text"} if index < texts else {}
