"""A report of paths in plain sentences: what each path changed, and what was not shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from detharness.probes.paths.continuous_batching import ALONE
from detharness.probes.wording import always_not_shown, arm_line, listed

_SUBJECTS = {
    "run_to_run": "the same call again",
    "padded_batch": "a padded batch",
    "continuous_batching": "continuous batching",
}


def summary(report: Mapping[str, Any]) -> list[str]:
    """What was seen, arm by arm, then what it means."""
    lines = []
    for arm in report["arms"]:
        lines.append(arm_line(arm, f"{arm['backend'] or 'transformers'} in {arm['dtype']}"))
        lines += _managed(arm)
    lines.append(_verdict(report))
    if not report["complete"]:
        lines.append("The run was cut short; the counts cover what was done until then.")
    return lines


def _managed(arm: Mapping[str, Any]) -> list[str]:
    """Continuous batching changes replies in two ways, which one count would hide."""
    levels = arm["axes"]["continuous_batching"]["levels"]
    others = [found for level, found in levels.items() if level != ALONE]
    if ALONE not in levels or not others:
        return []
    alone = levels[ALONE]
    trials, diverged = sum(found["trials"] for found in others), sum(found["diverged"] for found in others)
    return [
        f"Continuous batching in {arm['dtype']}, alone against generate: {alone['diverged']} of {alone['trials']} "
        f"replies moved; in company against alone: {diverged} of {trials}."
    ]


def _verdict(report: Mapping[str, Any]) -> str:
    tested = [name for name, axis in report["axes"].items() if axis["status"] != "not_tested"]
    if report["verdict"] == "not_tested":
        return "Nothing was tested, so nothing is claimed."
    if report["verdict"] == "identical":
        if not tested:
            return "Replies were equal, but nothing was seen to differ between their plays, so nothing is claimed."
        return f"A prompt's reply did not depend on how it was served: {listed([_SUBJECTS[name] for name in tested])}."
    moved = [name for name in tested if report["axes"][name]["status"] == "diverged"]
    text = [name for name in moved if report["axes"][name]["diverged_tokens"]]
    if not moved:  # The plain replies alone are compared in no axis, but a withdrawn trial may have moved.
        return "Replies moved where no axis could be blamed: do not rely on equal outputs."
    line = f"The same prompt gets other numbers from {listed([_SUBJECTS[name] for name in moved])}"
    if text:
        return (
            f"{line}, and other text from {listed([_SUBJECTS[name] for name in text])}: do not rely on equal outputs."
        )
    return f"{line}, though no token changed here: do not rely on equal outputs."


def not_shown(report: Mapping[str, Any]) -> list[str]:
    """What the run does not support, however it came out."""
    lines = []
    for reason, text in (
        ("left out", "These axes were left out: {}. Name them with --axes to play them."),
        ("not exercised", "These axes could not be exercised here, so they are not tested: {}."),
    ):
        axes = [name for name, axis in report["axes"].items() if axis["reason"] == reason]
        if axes:
            lines.append(text.format(listed(axes)))
    for arm in report["arms"]:
        for name, axis in arm["axes"].items():
            if axis["status"] == "not_tested" and axis["reason"] not in ("left out", "not exercised"):
                lines.append(f"{name} was not tested in {arm['dtype']}: {axis['reason']}.")
    if not report["effective_config"]["each_probe"]:
        lines.append(
            "Where each prompt would have plays of its own, the shortest stood for all; --axes plays every prompt."
        )
    lines.append(
        "Replies are greedy: a batch is sampled from one generator, so sampled replies have no reference of their own."
    )
    return lines + always_not_shown(report)
