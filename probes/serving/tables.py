"""A server's probe on a terminal: what will be sent, what the server can do, and what was found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from detharness.probes.serving.capabilities import MOST_REQUESTS
from detharness.probes.serving.plays import AXES
from detharness.probes.serving.settings import DESCRIPTION, MOST_LOCATED, REQUESTS_EACH, ServerPlan
from detharness.rendering.escape import visible
from detharness.rendering.tables import Cell, make_table

_CONTEXT = 60  # Characters of the common text that are shown.


def print_plan(console: Console, plan: ServerPlan) -> None:
    """Every request that will be sent, by what it is for, before the first one is."""
    counts: dict[str, list[int]] = {}
    paces: dict[str, str] = {}
    for play in plan.plays:
        count = counts.setdefault(play.level, [0, 0])
        count[0] += len(play.asks)
        count[1] += sum(ask.prompt is not None for ask in play.asks)
        paces[play.level] = play.pace if play.limit is None else f"{play.pace}, {play.limit} in flight"
    rows: list[list[Cell]] = [["what the server can do", DESCRIPTION + MOST_REQUESTS, None, "one by one, at most"]]
    rows += [[level, requests, watched, paces[level]] for level, (requests, watched) in counts.items()]
    rows.append(["where replies part", MOST_LOCATED * REQUESTS_EACH, None, "one by one, at most"])
    limit = plan.settings.max_requests
    console.print(make_table(["sent for", "requests", "watched", "pace"], rows, title="Requests"))
    budget = "" if limit is None else f"; --max-requests {limit} ends the run before that"
    console.print(Text(f"At most {plan.most_requests} requests in all, and what a busy server asks to repeat{budget}."))


def print_capabilities(console: Console, capabilities: Sequence[Mapping[str, Any]]) -> None:
    """What was tried of the server, and whether it works."""
    rows = [[one["name"], one["status"], one["detail"]] for one in capabilities]
    console.print(make_table(["capability", "status", "seen"], rows, title="What the server can do"))


def print_report(console: Console, report: Mapping[str, Any]) -> None:
    """The findings, the prompts, one example of replies that part, and the plain sentences."""
    arm = report["arms"][0]
    console.print(make_table(["finding", "status", "alone", "here", "p", "distinct", "minority"], _findings(report)))
    console.print(
        make_table(
            [
                "prompt",
                "replies",
                "distinct",
                "commonest",
                "first token",
                "first logprob",
                "widest gap",
                "margin",
                "class",
            ],
            [_prompt(prompt) for prompt in arm["prompts"]],
            title="Prompts: replies without a fresh prefix",
        )
    )
    for row in arm["divergences"][:1]:
        _print_divergence(console, row)
    if report["preset"] is not None:
        _print_runs(console, report["preset"])
    for line in report["summary"]:
        console.print(Text(visible(line)))
    console.print()
    console.print(Text("Not shown by this run:"))
    for line in report["not_shown"]:
        console.print(Text(visible(f"- {line}")))


def print_launches(console: Console, report: Mapping[str, Any]) -> None:
    """The launches of a matrix: what was changed in each, what moved, and whether its solo replies are the first's."""
    rows: list[list[Cell]] = []
    for launch in report["launches"]:
        replies, axes = launch["replies"], launch["axes"]
        rows.append(
            [
                launch["name"],
                launch["changed"],
                launch["verdict"],
                *(None if axes is None else axes[name] for name in AXES),
                launch["error"] if replies is None else f"{replies['as_base']} of {replies['compared']}",
            ]
        )
    columns = ["launch", "changed", "verdict", *AXES, "solo replies as base"]
    console.print(make_table(columns, rows, title="Launches"))


def _findings(report: Mapping[str, Any]) -> list[list[Cell]]:
    rows: list[list[Cell]] = []
    for name in AXES:
        axis, finding = report["axes"][name], report["findings"][name]
        solo, here = finding["solo"], finding["loaded"]
        minority = finding["minority"]
        rows.append(
            [
                name,
                axis["status"] if axis["reason"] is None else f"{axis['status']} ({axis['reason']})",
                f"{solo['diverged']} of {solo['n']}",
                None if here is None else f"{here['diverged']} of {here['n']}",
                None if finding["p_value"] is None else f"{finding['p_value']:.2g}",
                f"{finding['distinct_outputs']} for {finding['prompts']} prompts" if minority else None,
                None if minority is None else _minority(minority),
            ]
        )
    return rows


def _minority(minority: Mapping[str, Any]) -> str:
    low, high = minority["interval_95"]
    return f"{minority['count']} of {minority['n']} ({100 * low:.1f} to {100 * high:.1f} %)"


def _prompt(prompt: Mapping[str, Any]) -> list[Cell]:
    return [
        prompt["id"],
        prompt["trials"],
        prompt["unique_completions"],
        prompt["modal_count"],
        prompt["first_token_divergence"],
        prompt["first_logprob_divergence"],
        _number(prompt["max_logprob_gap"]),
        _number(prompt["margin_at_divergence"]),
        prompt["divergence_class"],
    ]


def _print_divergence(console: Console, row: Mapping[str, Any]) -> None:
    low, high = row["interval"]
    where = f"token {row['index']}" if low == high else f"about token {row['index']} ({low} to {high})"
    context = row["context"]
    behind = _quoted(context["common"][-_CONTEXT:])
    console.print(Text(f"Prompt {row['prompt']}, {row['level']}, {where} by {row['method']}, behind {behind}:"))
    for side in ("reference", "other"):
        forced = "" if row["forced"] is None else f"  (scored margin {_number(row['forced'][side]['margin']) or '-'})"
        console.print(Text(f"  {side}: {_quoted(context[side])}{forced}"))


def _print_runs(console: Console, runs: Mapping[str, Any]) -> None:
    rows = [[one["count"], one["text"]] for one in runs["continuations"]]
    if rows:
        console.print(make_table(["replies", "go on with"], rows, title="Behind the prefix that all share"))


def _quoted(text: str) -> str:
    return f'"{visible(text)}"'


def _number(value: float | None) -> str | None:
    return None if value is None else f"{value:.3g}"
