"""Two sides of one cell: on which levels they are the same, and what first sets them apart."""

from __future__ import annotations

from typing import Literal, get_args

from detharness.eval.compare.sides import Side

Level = Literal["logprob_bits", "tokens", "text", "answer", "verdict"]
LEVELS: tuple[Level, ...] = get_args(Level)
"""From the strictest to the loosest; what a target does not tell is unknown on its level."""

Cause = Literal["data_row", "prompt", "target", "parameters", "output", "grader"]
CAUSES: tuple[Cause, ...] = get_args(Cause)
"""In the order in which they are looked for: a cell belongs to the first that applies, so they are disjoint.

data_row: another data row. prompt: another task version, template or rendered messages (a choice order, too). target:
another model, engine or setting of it. parameters: another sampling parameter or seed. output: the same request and
another output, which is nondeterminism. grader: the same output and another verdict.
"""

_PROMPT = frozenset({"task_version", "template_digest", "messages_digest"})


def same_on(level: Level, a: Side, b: Side) -> bool | None:
    """Whether the sides are the same on ``level``; None where one of them does not tell."""
    if level == "logprob_bits":
        known = a.logprob_bits is not None and b.logprob_bits is not None
        return same_output(a, b) and a.logprob_bits == b.logprob_bits if known else None
    if level == "tokens":
        return a.tokens == b.tokens if a.tokens is not None and b.tokens is not None else None
    if level == "text":
        return a.text == b.text
    if level == "answer":
        return a.judged.same_answer(b.judged)
    return a.judged.verdict == b.judged.verdict


def same_output(a: Side, b: Side) -> bool:
    """Whether the outputs are the same by all that both targets tell: token ids count where both sides have them."""
    return a.text == b.text and same_on("tokens", a, b) is not False


def kind_of(a: Side, b: Side) -> str:
    """The one word for a pair of sides: the strictest thing that can be said of it.

    "bits", "same" (logprob bits unknown), "logprobs" (the output is the same, its logprob bits moved), "tokens" (the
    text alone is the same), "answer", "verdict" (only these are the same), or "flipped" (the verdict differs, whatever
    else is the same).
    """
    if a.judged.verdict != b.judged.verdict:
        return "flipped"
    if same_output(a, b):
        return {True: "bits", False: "logprobs", None: "same"}[same_on("logprob_bits", a, b)]
    if a.text == b.text:
        return "tokens"
    return "answer" if same_on("answer", a, b) else "verdict"


def cause_of(a: Side, b: Side) -> Cause | None:
    """The first thing that sets the sides apart; None when not even the verdict does."""
    if a.row_digest != b.row_digest:
        return "data_row"
    changed = {name for name in {*a.request, *b.request} if a.request.get(name) != b.request.get(name)}
    if changed & _PROMPT:
        return "prompt"
    if "target_digest" in changed:
        return "target"
    if changed:
        return "parameters"
    if not same_output(a, b):
        return "output"
    return "grader" if a.judged != b.judged else None
