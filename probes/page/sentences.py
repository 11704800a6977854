"""The sentences that need no knowledge of kernels: what a run means, and what a margin says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from detharness.statistics.proportions import wilson_interval, zero_event_upper_bound

_NEAR_BOTTOM = 0.05
"""Flips by rounding happen where margins are narrowest; one chosen blindly would lie this low once in twenty times."""

_WHAT_CHANGED = {
    "batch_size": "how many requests were served together",
    "slot": "the place in the batch",
    "content": "what the others asked",
    "chunk": "how the prompt was cut into pieces",
    "prefix_cache": "whether the beginning of the prompt was in the cache",
    "page_size": "the size of the memory pages",
    "page_placement": "where in memory the pages lay",
    "preemption": "being interrupted and resumed",
    "threads": "the number of threads",
    "seeds": "the seeds of the others",
    "samplers": "how the others were sampled",
    "run_to_run": "nothing at all: it was asked again, alone",
    "co_batching": "other requests in flight",
    "padded_batch": "standing in a padded batch",
    "continuous_batching": "standing in a continuous batch",
}


def headline(report: Mapping[str, Any]) -> str:
    """What the run means, in one or two sentences, for the subject's arms together."""
    subjects = [arm["statistics"] for arm in report["arms"] if arm["role"] == "subject"]
    trials, moved, texts = (sum(one[name] for one in subjects) for name in ("trials", "diverged", "diverged_tokens"))
    if report["verdict"] == "not_tested" or not trials:
        return "Nothing was compared, so nothing is claimed."
    if not moved:
        bound = percent(zero_event_upper_bound(trials))
        return (
            f"The same question got the same answer, whoever else was being served: nothing moved in {trials} "
            f"comparisons. If it ever does, then in fewer than {bound} of cases like these (95 % confidence)."
        )
    causes = what_changed([name for name, axis in report["axes"].items() if axis["status"] == "diverged"])
    if not texts:
        return (
            f"The answers stayed the same, the arithmetic behind them did not: in {rate(moved, trials)} the numbers "
            f"moved{causes} and no word did. On other prompts, a word may."
        )
    return f"The same question can get another answer: it did in {rate(texts, trials)}{causes}."


def what_changed(axes: Sequence[str]) -> str:
    """ ", when ... was changed" for a sentence; empty where no axis is to blame."""
    if not axes:
        return ", when several things differed at once"
    return ". What made the difference: " + "; ".join(axis_words(axis) for axis in axes)


def axis_words(axis: str) -> str:
    """An axis in words for who does not know engines; its name where there are none."""
    return _WHAT_CHANGED.get(axis, axis.replace("_", " "))


def margin_sentence(row: Mapping[str, Any]) -> str:
    """What the margin at a divergence says: a tie that rounding can flip, or a choice that it cannot."""
    if row["margin"] is None:
        return "The margin between the two best tokens there is not known."
    said = f"The margin between the two best tokens there is {number(row['margin'])}"
    if row["margin_rank"] is not None:
        rank, among = row["margin_rank"]
        said += f": rank {rank} from the smallest of the run's {among} margins"
        if row["median_margin"] is not None:
            said += f", whose median is {number(row['median_margin'])}"
    said += f". {_reading(row)}"
    if row["drift_max"] is not None:
        said += (
            f" Before it the two replies' logprobs drifted apart by {number(row['drift_median'])} (median) and "
            f"{number(row['drift_max'])} (most)."
        )
    return said


def _reading(row: Mapping[str, Any]) -> str:
    if row["divergence_class"] == "confident":
        return "That is no tie: rounding does not explain the flip, so look for a fault of logic or of sampling."
    if row["margin"] == 0 or row["divergence_class"] == "tie":
        return "An exact tie: any order is as right as another."
    if row["divergence_class"] == "near_tie":
        return "A near tie: rounding alone flips it."
    if row["margin_rank"] is None:
        return "How narrow that is among others is not known."
    rank, among = row["margin_rank"]
    if rank <= _NEAR_BOTTOM * among:
        return f"That is among the narrowest {percent(_NEAR_BOTTOM)}: a near tie, which rounding can flip."
    return "That is not among the narrowest: if the choice was greedy, look for a fault of logic or of sampling."


def finding_sentence(finding: Mapping[str, Any]) -> str:
    """Both rates with their n, and what the named test says of them."""
    said = [
        f"{side}: {rate(counts['diverged'], counts['n'])}" if counts["n"] else f"{side}: nothing compared"
        for side in ("solo", "loaded")
        if (counts := finding.get(side)) is not None
    ]
    p_value = finding.get("p_value")
    if p_value is not None:
        said.append(f"{finding['test']}: p = {p_value:.3g}")
    return ". ".join(said) + "."


def place(row: Mapping[str, Any]) -> str:
    """Where a divergence lies: exactly, or as well as the method can tell."""
    low, high = row["interval"]
    if row["index"] is not None and low == high:
        return f"token {row['index']}"
    at = f"token {low} to {high}" if low is not None else "a token that is not known"
    return at if row["byte_offset"] is None else f"{at}, byte {row['byte_offset']}"


def rate(count: int, trials: int) -> str:
    """ "3 of 12 comparisons (25 %, 95 % interval 8.9 % to 53 %)"."""
    low, high = wilson_interval(count, trials)
    return (
        f"{count} of {trials} comparisons ({percent(count / trials)}, 95 % interval {percent(low)} to {percent(high)})"
    )


def percent(share: float) -> str:
    """A share in percent, small ones with two digits that count."""
    return f"{100 * share:.1f} %" if share == 0 or share >= 0.01 else f"{100 * share:.2g} %"


def number(value: float | None) -> str:
    """Three digits that count; a dash where it is unknown."""
    return "-" if value is None else f"{value:.3g}"
