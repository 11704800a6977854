"""compare.html: both runs side by side, cell by cell, the first difference marked."""

from __future__ import annotations

import re

from detharness.eval.compare.report import Comparison, Pair
from detharness.eval.compare.wording import CAUSE_NAMES, level_rows, part_rows, sentences
from detharness.eval.differences import first_index
from detharness.eval.records import Cell, Output
from detharness.rendering.grid_page import GridCell, GridRow, Kind, Pane, grid_page, text_budget
from detharness.rendering.html import excerpt, html_table, tag

KINDS = (
    Kind("bits", "●", "good", "same output and logprob bits"),
    Kind("same", "○", "good", "same output"),
    Kind("logprobs", "◐", "near", "same output, logprob bits moved"),
    Kind("tokens", "◇", "near", "same text, other tokens"),
    Kind("answer", "◆", "warn", "same answer, other text"),
    Kind("verdict", "▲", "other", "same verdict, other answer"),
    Kind("flipped", "✕", "bad", "other verdict"),
    Kind("only_a", "◧", "blank", "in A alone"),
    Kind("only_b", "◨", "blank", "in B alone"),
    Kind("neither", "□", "blank", "in neither run"),
)

_WORD = re.compile(r"\s{0,20}\S{0,20}")  # What is marked: a word or a number, not the rest of the reply.


def compare_page(comparison: Comparison) -> str:
    """The page; same runs, same bytes. Reads the texts of the cells it shows from the runs again."""
    report = comparison.report
    said = sentences(report)
    summary = [
        tag("p", said[0], class_="headline"),
        tag("ul", *(tag("li", sentence) for sentence in said[1:])),
        tag("h2", "Cells by level"),
        html_table(
            ("level", "same", "different", "unknown"),
            [(name, *(str(count) for count in counts)) for name, *counts in level_rows(report)],
        ),
    ]
    if report["score"] is not None:
        summary += [
            tag("h2", "What the difference is made of"),
            html_table(
                ("cause", "points", "cells gained", "cells lost"),
                [(name, size, str(gained), str(lost)) for name, size, gained, lost in part_rows(report["score"])],
            ),
        ]
    summary.append(tag("p", "Texts here are excerpts: detharness eval verify RUN --show TASK:SAMPLE prints one whole."))
    return grid_page(f"{report['task']}: A and B", summary, KINDS, _rows(comparison))


def _rows(comparison: Comparison) -> list[GridRow]:
    cells_a, cells_b = comparison.a.sides.cells, comparison.b.sides.cells
    rows = dict(comparison.b.sides.run.rows) | dict(comparison.a.sides.run.rows)
    samples = max(side.sides.run.samples for side in (comparison.a, comparison.b))
    cells = len(cells_a.keys() | cells_b.keys())
    budget = text_budget(len(rows), len(rows) * samples, 2 * cells)
    return [
        GridRow(
            row.task_id,
            (("question", excerpt(row.question, 400)), ("gold", row.gold)),
            tuple(_cell(comparison, (row.task_id, sample), budget) for sample in range(samples)),
        )
        for row in rows.values()
    ]


def _cell(comparison: Comparison, cell: Cell, budget: int) -> GridCell:
    sides = {"A": comparison.a, "B": comparison.b}
    there = {name: side for name, side in sides.items() if cell in side.sides.cells}
    facts = [
        (f"{name}: verdict, extracted", f"{judged.verdict}, {judged.extracted}")
        for name, judged in ((name, side.sides.cells[cell].judged) for name, side in there.items())
    ]
    outputs = {name: side.output(cell) for name, side in there.items()}
    if len(there) < 2:
        kind = f"only_{next(iter(there)).lower()}" if there else "neither"
        panes = tuple(Pane(name, excerpt(_text(output), budget)) for name, output in outputs.items())
        return GridCell(cell[1], kind, (), tuple(facts), panes)
    pair = comparison.pairs[cell]
    if pair.cause is not None:
        facts.append(("first cause", CAUSE_NAMES[pair.cause]))
    facts += _position(pair)
    tags = () if pair.cause is None else (CAUSE_NAMES[pair.cause],)
    return GridCell(cell[1], pair.kind, tags, tuple(facts), _panes(outputs["A"], outputs["B"], budget))


def _position(pair: Pair) -> list[tuple[str, str]]:
    if pair.difference is None:
        return []
    part, index = pair.difference.part.replace("_", " "), pair.difference.index
    return [("first difference", part if index is None else f"{part}, position {index}")]


def _panes(a: Output, b: Output, budget: int) -> tuple[Pane, ...]:
    text_a, text_b = _text(a), _text(b)
    if text_a == text_b:
        return (Pane("A and B", excerpt(text_a, budget)),)
    index = first_index(text_a, text_b)
    return tuple(_marked(name, text, index, budget) for name, text in (("A", text_a), ("B", text_b)))


def _marked(name: str, text: str, index: int, budget: int) -> Pane:
    """``text`` around ``index``: the word there is marked, or the end of a text that ends there."""
    marked = _WORD.match(text, index)
    assert marked is not None  # It matches anything, an end too.
    before = excerpt(text[:index], budget // 2, head=0.2)
    after = excerpt(text[marked.end() :], budget // 2, head=0.8)
    return Pane(name, before, marked[0] or "[ends here]", after)


def _text(output: Output) -> str:
    """What a reader sees of an output: its reasoning, if it is apart, then its text."""
    parts = [] if output.reasoning is None else [f"[reasoning]\n{output.reasoning}\n[reply]\n"]
    return "".join([*parts, "[no text]" if output.text is None else output.text])
