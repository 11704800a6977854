"""Three findings kept apart: run to run, co-batching, prefix cache. Each against the replies to the same prompts alone.

A reply alone that differs from the first one alone is run-to-run noise. Load or a cache hit is blamed only for what an
exact test tells apart from that noise; what moved without being told apart is said to be so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from detharness.probes.findings import add_up, minority
from detharness.probes.serving.plays import AXES
from detharness.probes.serving.tally import Group, Tally, greatest, least
from detharness.statistics.fisher import stratified_fisher_exact

LEVEL = 0.05
"""The p-value below which noise is ruled out. Two tests are made of each axis, of bits and of tokens: half for each."""

Event = Literal["moved", "moved_tokens"]


@dataclass(frozen=True)
class AxisFindings:
    """One axis as the report shows it: its fields among the others' axes, and its comparison with the noise."""

    axis: dict[str, Any]
    finding: dict[str, Any]


def axis_findings(name: str, tally: Tally, axes: Sequence[str]) -> AxisFindings:
    """What the groups of an axis say. ``axes``: those that were to be played."""
    mine = {key: group for key, group in tally.groups.items() if key[0] == name}
    noise = {key: group for key, group in tally.groups.items() if key[0] == "run_to_run"}
    groups = list(mine.values())
    trials = sum(group.trials for group in groups)
    changed = sum(group.moved for group in groups)
    p_values = {} if name == "run_to_run" else _p_values(noise, mine)
    if not trials:
        confounded = any(group.confounded for group in groups)
        missing = "not exercised" if groups or name in axes else "left out"
        status, reason = "not_tested", "not told apart" if confounded else missing
    elif changed and p_values and min(p_values.values()) > LEVEL / len(p_values):
        status, reason = "not_tested", "not told apart"
    else:
        status, reason = ("diverged" if changed else "identical"), None
    axis = {
        "status": status,
        "reason": reason,
        "trials": trials,
        "diverged": changed,
        "diverged_tokens": sum(group.moved_tokens for group in groups),
        "confounded": sum(group.confounded for group in groups),
        "not_exercised": sum(group.not_exercised for group in groups),
        "exercised": add_up([group.exercised for group in groups]),
        "levels": _levels(mine),
        "first_token_divergence": _fold(least, [group.first_token for group in groups]),
        "first_logprob_divergence": _fold(least, [group.first_logprob for group in groups]),
        "max_logprob_gap": _fold(greatest, [group.max_logprob_gap for group in groups]),
        "max_ulp": None,
    }
    return AxisFindings(axis, _finding(name, noise, mine, p_values))


def _finding(
    name: str, noise: Mapping[Any, Group], mine: Mapping[Any, Group], p_values: dict[Event, float]
) -> dict[str, Any]:
    outputs = _by_prompt(mine)
    replies = sum(counts.total() for counts in outputs.values())
    modal = sum(max(counts.values()) for counts in outputs.values() if counts)
    strata = len({key[3] for key in mine})
    test = "Fisher's exact test, two-sided" + (", stratified by prompt" if strata > 1 else "")
    return {
        "solo": _counts(noise),
        "loaded": None if name == "run_to_run" else _counts(mine),
        "test": test if p_values else None,
        "p_value": p_values.get("moved"),
        "p_value_tokens": p_values.get("moved_tokens"),
        "level": LEVEL / len(p_values) if p_values else None,
        "prompts": strata,
        "distinct_outputs": sum(len(counts) for counts in outputs.values()),
        "minority": minority(replies - modal, replies),
        "by_prompt": {
            prompt: {"n": counts.total(), "distinct_outputs": len(counts), "modal_count": max(counts.values())}
            for prompt, counts in outputs.items()
            if counts
        },
    }


def _p_values(noise: Mapping[Any, Group], mine: Mapping[Any, Group]) -> dict[Event, float]:
    """Of bits and of tokens; nothing where one side has no trial."""
    sides = [_per_prompt(noise), _per_prompt(mine)]
    shared = [prompt for prompt in sides[1] if prompt in sides[0]]
    if not shared:
        return {}
    events: tuple[Event, ...] = ("moved", "moved_tokens")
    return {
        event: stratified_fisher_exact(
            [
                (sides[0][prompt][event], sides[0][prompt]["n"], sides[1][prompt][event], sides[1][prompt]["n"])
                for prompt in shared
            ]
        )
        for event in events
    }


def _per_prompt(groups: Mapping[Any, Group]) -> dict[str, Counter[str]]:
    """Trials ("n") and events of each prompt that has trials."""
    found: dict[str, Counter[str]] = {}
    for (_, _, _, prompt), group in groups.items():
        if group.trials:
            counts = found.setdefault(prompt, Counter())
            counts.update(n=group.trials, moved=group.moved, moved_tokens=group.moved_tokens)
    return found


def _by_prompt(groups: Mapping[Any, Group]) -> dict[str, Counter[int]]:
    found: dict[str, Counter[int]] = {}
    for (_, _, _, prompt), group in groups.items():
        found.setdefault(prompt, Counter()).update(group.outputs)
    return found


def _counts(groups: Mapping[Any, Group]) -> dict[str, int]:
    return {
        "n": sum(group.trials for group in groups.values()),
        "diverged": sum(group.moved for group in groups.values()),
        "diverged_tokens": sum(group.moved_tokens for group in groups.values()),
    }


def _levels(groups: Mapping[Any, Group]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for (_, _, level, _), group in groups.items():
        counts = found.setdefault(level, {"trials": 0, "diverged": 0})
        counts["trials"] += group.trials
        counts["diverged"] += group.moved
    return {level: counts for level, counts in sorted(found.items()) if counts["trials"]}


def _fold(choose: Any, values: Sequence[Any]) -> Any:
    result = None
    for value in values:
        result = choose(result, value)
    return result


def all_findings(tally: Tally, axes: Sequence[str]) -> dict[str, AxisFindings]:
    """Every axis of a server."""
    return {name: axis_findings(name, tally, axes) for name in AXES}
