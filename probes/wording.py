"""The report in plain sentences: what was seen, and what was not shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def summary(report: Mapping[str, Any]) -> list[str]:
    """What was seen, arm by arm, and what it means for the subject."""
    lines = [arm_line(arm, f"{arm['kernels']} kernels in {arm['dtype']} ({arm['role']})") for arm in report["arms"]]
    controls = [arm for arm in report["arms"] if arm["role"] == "control"]
    if controls and all(arm["verdict"] == "identical" for arm in controls):
        lines.append(
            "The control arm did not move: on this machine and these prompts the library-default kernels gave the same "
            "bits in every trial, so the comparison with the invariant kernels shows no difference here."
        )
    lines.append(_verdict_line(report))
    if not report["complete"]:
        lines.append("The run was cut short; the counts cover what was done until then.")
    return lines


def arm_line(arm: Mapping[str, Any], name: str) -> str:
    """What was seen in one arm, which the sentence calls ``name``."""
    statistics = arm["statistics"]
    trials = statistics["trials"]
    if not trials:
        return f"{name}: nothing was compared."
    compared = f"{trials} trials ({statistics['tokens_compared']} tokens)"
    if not statistics["diverged"]:
        bound = statistics["upper_bound_95"]
        return (
            f"{name}: no bit moved in {compared}. With 95 % confidence the rate of moved trials under such traffic is "
            f"below {percent(bound)}."
        )
    low, high = statistics["rate_interval_95"]
    moved = f"{name}: bits moved in {statistics['diverged']} of {compared}, 95 % interval {percent(low)} to "
    moved += f"{percent(high)}"
    axes = [axis for axis, found in arm["axes"].items() if found["status"] == "diverged"]
    by = f", on {listed(axes)}" if axes else ", only where several things differed at once"
    tokens = statistics["diverged_tokens"]
    if not tokens:
        return f"{moved}{by}; every token stayed the same."
    first = min(p["first_token_divergence"] for p in arm["prompts"] if p["first_token_divergence"] is not None)
    replies = max(prompt["unique_completions"] for prompt in arm["prompts"])
    return (
        f"{moved}{by}; the text itself changed in {tokens} of them, from token {first} on, and one prompt got "
        f"{replies} different replies."
    )


def _verdict_line(report: Mapping[str, Any]) -> str:
    kernels = listed(list(dict.fromkeys(arm["kernels"] for arm in report["arms"] if arm["role"] == "subject")))
    tested = [axis for axis, found in report["axes"].items() if found["status"] != "not_tested"]
    over = f" over {listed(tested)}" if tested else ""
    if report["verdict"] == "identical":
        return f"Other people's traffic changed nothing under the {kernels} kernels{over}."
    if report["verdict"] == "diverged":
        return f"Other people's traffic changes replies under the {kernels} kernels: do not rely on equal outputs."
    return f"Nothing was tested under the {kernels} kernels, so nothing is claimed."


def not_shown(report: Mapping[str, Any]) -> list[str]:
    """What the run does not support, however it came out."""
    lines = []
    for reason, text in (
        ("left out", "These axes were left out of the subject's arms: {}. Name them with --axes to play them."),
        ("not exercised", "These axes could not be exercised here, so they are not tested: {}."),
        ("not told apart", "Company or pages alone moved the replies, so these could not be told apart from them: {}."),
    ):
        axes = [axis for axis, found in report["axes"].items() if found["reason"] == reason]
        if axes:
            lines.append(text.format(listed(axes)))
    for arm in report["arms"]:
        missing = [axis for axis, found in arm["axes"].items() if found["status"] == "not_tested"]
        if missing and arm["role"] == "subject" and any(report["axes"][a]["status"] != "not_tested" for a in missing):
            lines.append(f"The {arm['name']} arm did not test {listed(missing)}.")
        combined = arm["combined"]
        if arm["role"] == "subject" and 0 < combined["pairs_covered"] < combined["pairs"]:
            lines.append(
                f"In the {arm['name']} arm, {combined['pairs_covered']} of {combined['pairs']} pairs of settings stood "
                "together in a combined trial; the others did not meet."
            )
    return lines + always_not_shown(report)


def always_not_shown(report: Mapping[str, Any]) -> list[str]:
    """What no run supports, and what this one's logits and prompts do not: the same for every kind of target."""
    lines = []
    broken = [arm["name"] for arm in report["arms"] if arm["statistics"]["non_finite_trials"]]
    if broken:
        lines.append(
            f"NaN or infinite logits stood in compared rows of {listed(broken)}: equal bits say nothing about a model "
            "that is broken."
        )
    lines.append(
        "Only this model, these prompts, this machine and these library versions were looked at; another CPU may take "
        "other code paths."
    )
    lines.append("Trials that share a prompt are not independent, so the intervals are for this mix of prompts.")
    if not report["effective_config"]["logits_compared"]:
        lines.append("The replies were too long to keep logits: tokens and chosen logprobs were compared, logits not.")
    if report["amplified"]:
        lines.append(
            "The prompts were picked for small top-2 margins (amplified): rates of changed text are higher than under "
            "everyday prompts."
        )
    return lines


def percent(rate: float) -> str:
    """A rate as text."""
    return f"{100 * rate:.1f} %"


def listed(names: Sequence[str]) -> str:
    """Names as a list in a sentence."""
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]
