"""The report on a terminal: verdicts first, then what moved, then the sentences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from detharness.probes.axes import AXES
from detharness.rendering.escape import visible
from detharness.rendering.tables import make_table

_CONTEXT = 60  # Characters of a reply shown where two of them part.


def print_report(console: Console, report: Mapping[str, Any]) -> None:
    """Print the axes of every arm, its prompts, one example of replies that part, and the plain paragraph."""
    arms = report["arms"]
    heads = [f"{arm['kernels']} {arm['dtype']} ({arm['role']})" for arm in arms]
    rows = [[axis, *(_axis_cell(arm["axes"][axis]) for arm in arms)] for axis in AXES]
    rows.append(["combined", *(_combined_cell(arm["combined"]) for arm in arms)])
    rows.append(["verdict", *(arm["verdict"] for arm in arms)])
    console.print(make_table(["axis", *heads], rows, title="Axes: moved trials of all trials"))
    for arm, head in zip(arms, heads, strict=True):
        _print_prompts(console, arm, f"{head}, {arm['backend'] or 'not started'}")
    for line in report["summary"]:
        console.print(Text(visible(line)))
    console.print()
    console.print(Text("Not shown by this run:"))
    for line in report["not_shown"]:
        console.print(Text(visible(f"- {line}")))


def _axis_cell(axis: Mapping[str, Any]) -> str:
    if axis["status"] == "not_tested":
        return f"not_tested ({axis['reason']})"
    tokens = f", tokens in {axis['diverged_tokens']}" if axis["diverged_tokens"] else ""
    return f"{axis['status']} ({axis['diverged']} of {axis['trials']}{tokens})"


def _combined_cell(combined: Mapping[str, Any]) -> str:
    if not combined["trials"]:
        return "not_tested (left out)"
    status = "diverged" if combined["diverged"] else "identical"
    return f"{status} ({combined['diverged']} of {combined['trials']})"


def _print_prompts(console: Console, arm: Mapping[str, Any], title: str) -> None:
    columns = [
        "prompt",
        "trials",
        "unique completions",
        "first token divergence",
        "first logprob divergence",
        "widest logprob gap",
        "widest ULP distance",
        "margin there",
        "class",
    ]
    rows = [
        [
            prompt["id"],
            prompt["trials"],
            prompt["unique_completions"],
            prompt["first_token_divergence"],
            prompt["first_logprob_divergence"],
            _number(prompt["max_logprob_gap"]),
            prompt["max_ulp"],
            _number(prompt["margin_at_divergence"]),
            prompt["divergence_class"],
        ]
        for prompt in arm["prompts"]
    ]
    console.print(make_table(columns, rows, title=title))
    for prompt in arm["prompts"]:
        if prompt["unique_completions"] > 1:
            _print_replies(console, prompt)
            break


def _print_replies(console: Console, prompt: Mapping[str, Any]) -> None:
    """The replies to one prompt around the place where they part from the first."""
    first, *others = prompt["completions"]
    other = next((reply for reply in others if reply["parts_at"] is not None), others[0])
    shared = _shared(first["text"], other["text"])
    start = max(0, shared - _CONTEXT)
    console.print(Text(f"prompt {prompt['id']}, replies after {_quoted(first['text'][start:shared])}:"))
    for reply in (first, other):
        text = reply["text"][shared : shared + _CONTEXT]
        console.print(Text(f"  {reply['count']} of {prompt['trials']}: {_quoted(text)}"))


def _quoted(text: str) -> str:
    return f'"{visible(text)}"'


def _shared(left: str, right: str) -> int:
    pairs = enumerate(zip(left, right, strict=False))
    return next((index for index, (mine, theirs) in pairs if mine != theirs), min(len(left), len(right)))


def _number(value: float | None) -> str | None:
    return None if value is None else f"{value:.3g}"
