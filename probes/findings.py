"""What the rows of any run say of a prompt, of an axis, and of rates: the pieces of ``report.json``. No clock, no path.

A trial is one watched reply. Its axis verdict compares it with the reference that differs in that axis only; its
prompt verdict compares it with the probe alone. "Diverged" means that any bit moved: a token, a chosen logprob, or
any logit up to the first token that differs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from detharness.statistics.proportions import wilson_interval, zero_event_upper_bound
from detharness.statistics.survival import survival_curve

Row = Mapping[str, Any]

# Firmest first: what a prompt's divergences are called is the firmest among them.
_CLASSES = ("confident", "near_tie", "tie")


def joint_status(statuses: Sequence[str]) -> str:
    """diverged if any did, else identical if any is, else not_tested."""
    return next((status for status in ("diverged", "identical") if status in statuses), "not_tested")


def moved(comparison: Row) -> bool:
    """Whether any bit moved in a recorded comparison."""
    return any(comparison[name] is not None for name in ("first_token", "first_logprob", "first_logits"))


def _least(values: Sequence[int | None]) -> int | None:
    return min((value for value in values if value is not None), default=None)


def _greatest(values: Sequence[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def prompt_findings(name: str, solo: Row | None, trials: Sequence[Row]) -> dict[str, Any]:
    """One prompt over all of its trials, each against the solo reply, which counts as a trial of its own.

    Indices are relative to the solo reply.
    """
    mine = [row for row in trials if row["prompt"] == name]
    found = [(row["with_solo"], row["offset"]) for row in mine]
    firsts = {
        kind: _least([None if c[kind] is None else c[kind] + offset for c, offset in found])
        for kind in ("first_token", "first_logprob", "first_logits")
    }
    parted = [comparison for comparison, _ in found if comparison["first_token"] is not None]
    classes = [comparison["divergence_class"] for comparison in parted]
    completions = _completions(solo, mine)
    replies = len(mine) + (solo is not None)
    modal = max((completion["count"] for completion in completions), default=0)
    margins = [comparison["margin"] for comparison in parted if comparison["margin"] is not None]
    return {
        "id": name,
        "trials": replies,
        "unique_completions": len(completions),
        "modal_count": modal,
        "minority": minority(replies - modal, replies),
        "diverged": sum(moved(comparison) for comparison, _ in found),
        "first_token_divergence": firsts["first_token"],
        "first_token_position": _least([comparison["position"] for comparison in parted]),
        "first_logprob_divergence": firsts["first_logprob"],
        "first_logits_divergence": firsts["first_logits"],
        "max_logprob_gap": _greatest([comparison["max_logprob_gap"] for comparison, _ in found]),
        "max_ulp": _greatest([comparison["max_ulp"] for comparison, _ in found]),
        "margin_at_divergence": _greatest(margins),
        "divergence_class": next((kind for kind in _CLASSES if kind in classes), None),
        "completions": completions,
    }


def minority(count: int, replies: int) -> dict[str, Any] | None:
    """How many of ``replies`` replies to one prompt are not the commonest one, as a rate with its bounds."""
    if not replies:
        return None
    interval = wilson_interval(count, replies)
    return {"count": count, "n": replies, "rate": count / replies, "interval_95": list(interval)}


def _completions(solo: Row | None, trials: Sequence[Row]) -> list[dict[str, Any]]:
    """Distinct replies with their counts, the solo reply first, then by count; texts are of the longest one seen.

    A reply that was cut short counts with the first longer one that it begins: it is no reply of its own.
    """
    if solo is None:
        return []
    head = solo["token_ids"]
    replies = [(head, solo["text"])]
    replies += [(head[: row["offset"]] + row["token_ids"], row["text"]) for row in trials]
    groups: list[dict[str, Any]] = []
    for tokens, text in sorted(replies, key=lambda reply: -len(reply[0])):
        group = next((group for group in groups if group["tokens"][: len(tokens)] == tokens), None)
        if group is None:
            groups.append({"tokens": tokens, "count": 1, "text": text})
        else:
            group["count"] += 1
    groups.sort(key=lambda group: (group["tokens"][: len(head)] != head, -group["count"]))
    return [
        {"count": group["count"], "text": group["text"], "parts_at": _parts_at(head, group["tokens"])}
        for group in groups
    ]


def _parts_at(left: Sequence[int], right: Sequence[int]) -> int | None:
    """First index at which two replies differ; None if one begins the other."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((index for index, (mine, theirs) in pairs if mine != theirs), None)


def axis_findings(name: str, played: Sequence[str], trials: Sequence[Row]) -> dict[str, Any]:
    """One axis over the trials that exercised it and nothing else; the others prove nothing and are only counted."""
    mine = [row for row in trials if row["axis"] == name]
    exercised = [row for row in mine if row["exercised"] and not row["confounded"]]
    confounded = [row for row in mine if row["exercised"] and row["confounded"]]
    changed = [row for row in exercised if moved(row["comparison"])]
    # A level of which every trial was withdrawn leaves the axis open, whatever its milder levels found.
    withdrawn = {row["level"] for row in confounded} - {row["level"] for row in exercised}
    if changed or (exercised and not withdrawn):
        reason = None
    elif withdrawn:
        reason = "not told apart"
    elif mine or name in played:
        reason = "not exercised"
    else:
        reason = "left out"
    return {
        "status": "diverged" if changed else "identical" if reason is None else "not_tested",
        "reason": reason,
        "trials": len(exercised),
        "diverged": len(changed),
        "diverged_tokens": sum(row["comparison"]["first_token"] is not None for row in exercised),
        "confounded": len(confounded),
        "not_exercised": len(mine) - len(exercised) - len(confounded),
        "exercised": add_up([row["exercised"] for row in exercised]),
        "levels": levels(exercised),
        "first_token_divergence": _least([row["comparison"]["first_token"] for row in exercised]),
        "first_logprob_divergence": _least([row["comparison"]["first_logprob"] for row in exercised]),
        "max_logprob_gap": _greatest([row["comparison"]["max_logprob_gap"] for row in exercised]),
        "max_ulp": _greatest([row["comparison"]["max_ulp"] for row in exercised]),
    }


def levels(trials: Sequence[Row]) -> dict[str, dict[str, int]]:
    """Trials and moved trials by level."""
    found: dict[str, dict[str, int]] = {}
    for row in trials:
        level = found.setdefault(row["level"], {"trials": 0, "diverged": 0})
        level["trials"] += 1
        level["diverged"] += moved(row["comparison"])
    return found


def add_up(counters: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Numbers add up, lists join as sets."""
    total: dict[str, Any] = {}
    for counter in counters:
        for name, value in counter.items():
            if isinstance(value, list):
                total[name] = sorted({*total.get(name, []), *value})
            else:
                total[name] = total.get(name, 0) + value
    return total


def joined_axis(axes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One axis over the subject's arms."""
    reasons = [axis["reason"] for axis in axes]
    status = joint_status([axis["status"] for axis in axes])
    return {
        "status": status,
        "reason": None if status != "not_tested" else next((r for r in reasons if r != "left out"), "left out"),
        "trials": sum(axis["trials"] for axis in axes),
        "diverged": sum(axis["diverged"] for axis in axes),
        "diverged_tokens": sum(axis["diverged_tokens"] for axis in axes),
        "exercised": add_up([axis["exercised"] for axis in axes]),
    }


def statistics(trials: Sequence[Row], diverged: int) -> dict[str, Any]:
    """Counts over all trials against the solo replies, and what they say about rates.

    The intervals take trials as independent; trials of one prompt are not quite, which ``not_shown`` says.
    """
    tokens = [row["with_solo"]["first_token"] for row in trials]
    parted = sum(first is not None for first in tokens)
    curve = survival_curve([(row["with_solo"]["first_token"], row["with_solo"]["tokens"]) for row in trials])
    return {
        "tokens_compared": sum(row["with_solo"]["tokens"] for row in trials),
        "trials": len(trials),
        "diverged": diverged,
        "non_finite_trials": sum(row["with_solo"]["non_finite"] for row in trials),
        "rate_interval_95": list(wilson_interval(diverged, len(trials))) if trials else None,
        "upper_bound_95": zero_event_upper_bound(len(trials)) if trials and not diverged else None,
        "diverged_tokens": parted,
        "token_rate_interval_95": list(wilson_interval(parted, len(trials))) if trials else None,
        "survival": [asdict(point) for point in curve],
    }
