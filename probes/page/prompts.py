"""Per prompt: how many different replies it got, and where they part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from detharness.probes.page.blocks import each_arm, more, wide_table
from detharness.probes.page.sentences import number, percent
from detharness.rendering.html import Html, excerpt, tag
from detharness.rendering.plots import interval_bar

_PROMPTS = 300
_REPLIED = 36  # Prompts whose replies are listed,
_REPLIES = 8  # and how many of each.
_REPLY_BYTES = 300
_NAME_BYTES = 120

_COLUMNS = (
    "prompt",
    "replies",
    "different ones",
    "not the commonest",
    "",
    "first token that differs",
    "first logprob that differs",
    "widest logprob gap",
    "margin there",
    "class",
)


def prompt_tables(report: Mapping[str, Any]) -> list[Html]:
    """A table for each arm, and below it the replies of prompts that got more than one."""
    found = []
    cap, replied = each_arm(report, _PROMPTS), each_arm(report, _REPLIED)
    for arm in report["arms"]:
        prompts = arm["prompts"]
        rows = [_row(prompt) for prompt in prompts[:cap]]
        split = [prompt for prompt in prompts if prompt["unique_completions"] > 1]
        found += [
            tag("h3", excerpt(f"{arm['name']} ({arm['role']})", _NAME_BYTES)),
            wide_table(_COLUMNS, rows, label="prompts"),
            *more(len(prompts) - cap, "prompts"),
            *(_replies(prompt) for prompt in split[:replied]),
            *more(len(split) - replied, "prompts with more than one reply"),
        ]
    return found


def _row(prompt: Mapping[str, Any]) -> tuple[str, ...]:
    minority = prompt["minority"]
    said, bar = "-", Html("")
    if minority is not None:
        low, high = minority["interval_95"]
        said = (
            f"{minority['count']} of {minority['n']}: {percent(minority['rate'])} ({percent(low)} to {percent(high)})"
        )
        bar = interval_bar(minority["rate"], low, high)
    return (
        excerpt(prompt["id"], _NAME_BYTES),
        str(prompt["trials"]),
        str(prompt["unique_completions"]),
        said,
        bar,
        _or_dash(prompt["first_token_divergence"]),
        _or_dash(prompt["first_logprob_divergence"]),
        number(prompt["max_logprob_gap"]),
        number(prompt["margin_at_divergence"]),
        _or_dash(prompt["divergence_class"]),
    )


def _replies(prompt: Mapping[str, Any]) -> Html:
    head = excerpt(f"{prompt['id']}: {prompt['unique_completions']} different replies", _NAME_BYTES)
    rows = [
        (
            f"{reply['count']} of {prompt['trials']}",
            "-" if reply["parts_at"] is None else f"token {reply['parts_at']}",
            tag("code", excerpt(reply["text"], _REPLY_BYTES)),
        )
        for reply in prompt["completions"][:_REPLIES]
    ]
    return tag(
        "details",
        tag("summary", head),
        wide_table(("count", "parts from the first at", "reply"), rows, label="replies", texts=3),
        *more(len(prompt["completions"]) - _REPLIES, "replies"),
    )


def _or_dash(value: object) -> str:
    return "-" if value is None else str(value)
