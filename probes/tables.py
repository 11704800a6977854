"""The report on a terminal: verdicts first, then what moved, then the sentences; for every kind of target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from detharness.probes.contexts import shared_length
from detharness.probes.page.sentences import finding_sentence, headline, margin_sentence, number, percent, place
from detharness.rendering.escape import one_line, visible
from detharness.rendering.tables import fitting_table, make_table

_CONTEXT = 60  # Characters of a reply shown where two of them part.
_PROMPTS = 40  # Rows: report.json and the page hold more.
_DIVERGENCES = 8


def print_report(console: Console, report: Mapping[str, Any]) -> None:
    """Print the axes of every arm, its prompts, an example of replies that part, a server's abilities, the words."""
    arms = report["arms"]
    _print_axes(console, arms)
    for arm in arms:
        _print_prompts(console, arm)
        _print_divergences(console, arm)
    if report.get("capabilities"):
        rows = [(one["name"], one["status"], one["detail"]) for one in report["capabilities"]]
        console.print(make_table(("the server", "found", "detail"), rows, title="What the server can do"))
    for name, finding in report.get("findings", {}).items():
        console.print(Text(one_line(f"{name}: {finding_sentence(finding)}")))
    console.print(Text(one_line(headline(report)), style="bold"))
    for line in report["summary"]:
        console.print(Text(one_line(line)))
    console.print()
    console.print(Text("Not shown by this run:"))
    for line in report["not_shown"]:
        console.print(Text(one_line(f"- {line}")))


def _print_axes(console: Console, arms: Sequence[Mapping[str, Any]]) -> None:
    axes = list(dict.fromkeys(name for arm in arms for name in arm["axes"]))
    rows = [[axis, *(_axis_cell(arm["axes"].get(axis)) for arm in arms)] for axis in axes]
    if any(arm.get("combined") for arm in arms):
        rows.append(["combined", *(_combined_cell(arm.get("combined")) for arm in arms)])
    rows.append(["verdict", *(arm["verdict"] for arm in arms)])
    heads = [_head(arm) for arm in arms]
    console.print(make_table(["axis", *heads], rows, title="Axes: moved trials of all trials"))


def _head(arm: Mapping[str, Any]) -> str:
    return f"{arm['name'].replace('/', ' ')} ({arm['role']})"  # Spaces, so that a narrow column can break it.


def _axis_cell(axis: Mapping[str, Any] | None) -> str | None:
    if axis is None:
        return None
    if axis["status"] == "not_tested":
        return f"not_tested ({axis['reason']})"
    tokens = f", tokens in {axis['diverged_tokens']}" if axis["diverged_tokens"] else ""
    return f"{axis['status']} ({axis['diverged']} of {axis['trials']}{tokens})"


def _combined_cell(combined: Mapping[str, Any] | None) -> str:
    if not combined or not combined["trials"]:
        return "not_tested (left out)"
    status = "diverged" if combined["diverged"] else "identical"
    return f"{status} ({combined['diverged']} of {combined['trials']})"


def _print_prompts(console: Console, arm: Mapping[str, Any]) -> None:
    columns = (
        "prompt",
        "trials",
        "unique completions",
        "first token divergence",
        "first logprob divergence",
        "margin there",
        "class",
        "not the commonest",
        "widest logprob gap",
        "widest ULP distance",
    )
    rows = [
        (
            prompt["id"],
            prompt["trials"],
            prompt["unique_completions"],
            prompt["first_token_divergence"],
            prompt["first_logprob_divergence"],
            _number(prompt["margin_at_divergence"]),
            prompt["divergence_class"],
            _minority(prompt["minority"]),
            _number(prompt["max_logprob_gap"]),
            prompt["max_ulp"],
        )
        for prompt in arm["prompts"]
    ]
    backend = "" if arm["backend"] is None else f", {arm['backend']}"
    console.print(fitting_table(console.width, columns, rows[:_PROMPTS], title=f"{_head(arm)}{backend}"))
    _print_more(console, len(rows) - _PROMPTS, "prompts")
    split = next((prompt for prompt in arm["prompts"] if prompt["unique_completions"] > 1), None)
    if split is not None:
        _print_replies(console, split)


def _print_divergences(console: Console, arm: Mapping[str, Any]) -> None:
    found = arm["divergences"]
    if not found:
        return
    columns = ("prompt", "axis", "place", "margin", "rank", "level", "seen", "prefill", "median margin", "drift")
    rows = [
        (
            row["prompt"],
            row["axis"] or "several",
            place(row),
            _number(row["margin"]),
            None if row["margin_rank"] is None else "{} of {}".format(*row["margin_rank"]),
            row["level"],
            row["count"],
            row["prompt_tokens"],
            _number(row["median_margin"]),
            None if row["drift_max"] is None else f"{number(row['drift_median'])}, {number(row['drift_max'])}",
        )
        for row in found[:_DIVERGENCES]
    ]
    console.print(
        fitting_table(
            console.width, columns, rows, title="Where tokens part: margin, its rank in the run, drift (median, max)"
        )
    )
    _print_more(console, len(found) - _DIVERGENCES, "places")
    console.print(Text(one_line(f"First of them: {margin_sentence(found[0])}")))


def _print_more(console: Console, left_out: int, what: str) -> None:
    if left_out > 0:
        console.print(Text(f"and {left_out} more {what}: report.json has them all."))


def _print_replies(console: Console, prompt: Mapping[str, Any]) -> None:
    """The replies to one prompt around the place where they part from the first."""
    first, *others = prompt["completions"]
    other = next((reply for reply in others if reply["parts_at"] is not None), others[0])
    shared = shared_length(first["text"], other["text"])
    start = max(0, shared - _CONTEXT)
    console.print(Text(f"prompt {visible(prompt['id'])}, replies after {_quoted(first['text'][start:shared])}:"))
    for reply in (first, other):
        text = reply["text"][shared : shared + _CONTEXT]
        console.print(Text(f"  {reply['count']} of {prompt['trials']}: {_quoted(text)}"))


def _quoted(text: str) -> str:
    return f'"{visible(text)}"'


def _minority(minority: Mapping[str, Any] | None) -> str | None:
    if minority is None:
        return None
    low, high = minority["interval_95"]
    return f"{minority['count']} of {minority['n']} ({percent(low)} to {percent(high)})"


def _number(value: float | None) -> str | None:
    return None if value is None else number(value)
