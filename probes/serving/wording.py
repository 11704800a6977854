"""A server's report in plain sentences: sets of outputs and rates with their bounds, never "it changed"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_NAMES = {"run_to_run": "repeating a prompt alone", "co_batching": "load", "prefix_cache": "a prefix-cache hit"}


def summary(report: Mapping[str, Any]) -> list[str]:
    """What was seen: the verdict first, then each finding with its numbers."""
    lines = [_verdict(report), *(_finding(report, name) for name in _NAMES)]
    if report["preset"] is not None:
        lines += _preset(report["preset"])
    if report["errors"]:
        total = sum(error["count"] for error in report["errors"])
        kinds = ", ".join(f"{error['count']} {error['kind']}" for error in report["errors"])
        lines.append(f"{total} of {report['requests']} requests got no reply ({kinds}); they count as no reply.")
    ending = {
        "requests": "The budget of requests ended the run",
        "seconds": "The budget of seconds ended the run",
        "interrupted": "The run was interrupted",
        "server": "The server stopped answering, and the run ended",
    }.get(report["ended"] or "")
    if ending is not None or not report["complete"]:
        lines.append(f"{ending or 'The run was cut short'}; the counts cover what was done until then.")
    return lines


def _verdict(report: Mapping[str, Any]) -> str:
    statistics = report["arms"][0]["statistics"]
    n = statistics["trials"]
    if report["verdict"] == "not_tested":
        return "Nothing was compared, so nothing is claimed."
    if report["verdict"] == "identical":
        bound = _percent(statistics["upper_bound_95"])
        return (
            f"In {n} compared replies nothing moved; with 95 % confidence the rate of moved replies under such traffic "
            f"is below {bound}."
        )
    low, high = statistics["rate_interval_95"]
    outputs = max(prompt["unique_completions"] for prompt in report["arms"][0]["prompts"])
    return (
        f"{statistics['diverged']} of {n} compared replies moved (95 % interval {_percent(low)} to {_percent(high)}), "
        f"{statistics['diverged_tokens']} of them in their text; one prompt has {outputs} distinct outputs."
    )


def _finding(report: Mapping[str, Any], name: str) -> str:
    axis, finding = report["axes"][name], report["findings"][name]
    what = _NAMES[name]
    counts = finding["solo"] if finding["loaded"] is None else finding["loaded"]
    if axis["reason"] in ("left out", "not exercised"):
        why = "it was left out" if axis["reason"] == "left out" else "it was not seen to happen"
        return f"{name}: not tested, {why}."
    seen = f"{counts['diverged']} of {counts['n']} replies moved"
    if name == "run_to_run":
        return f"{name}: {seen} by {what}, {counts['diverged_tokens']} in their text."
    solo = finding["solo"]
    against = f"{seen} under {what}, {solo['diverged']} of {solo['n']} alone"
    if finding["test"] is None:
        return f"{name}: {against}; without both there is no test."
    p = f"{finding['test']}: p = {finding['p_value']:.2g}, of text alone p = {finding['p_value_tokens']:.2g}"
    if axis["reason"] == "not told apart":
        return f"{name}: {against} ({p}): not told apart from run-to-run noise."
    return f"{name}: {against} ({p})."


def _preset(preset: Mapping[str, Any]) -> list[str]:
    if preset["commonest"] is None:
        return []
    lines = [
        f"{preset['runs']} runs of one prompt gave {preset['distinct']} distinct replies; the commonest came "
        f"{preset['commonest']['count']} times."
    ]
    if preset["continuations"]:
        ways = "; ".join(f"{one['count']} with {one['text'][:40]!r}" for one in preset["continuations"][:2])
        lines.append(f"All share their first {preset['common_prefix_tokens']} tokens; then they go on: {ways}.")
    return lines


def not_shown(report: Mapping[str, Any]) -> list[str]:
    """What the run does not support, however it came out."""
    works = {one["name"] for one in report["capabilities"] if one["status"] == "works"}
    lines = []
    for reason, text in (
        ("left out", "These findings were left out: {}. Name them with --axes."),
        ("not exercised", "These could not be seen to happen here, so they are not tested: {}."),
        (
            "not told apart",
            "These moved replies no more than repeating a prompt alone does, or the cache differed: {}.",
        ),
    ):
        axes = [axis for axis, found in report["axes"].items() if found["reason"] == reason]
        if axes and not (reason == "left out" and report["preset"] is not None):
            lines.append(text.format(_listed(axes)))
    if "logprobs" not in works:
        lines.append(
            "The server shows no logprobs: texts were compared, and what moves without changing a token is unseen."
        )
    if "token ids" not in works and "logprobs" not in works:
        lines.append("It shows no tokens either: where replies part is exact in bytes and estimated in tokens.")
    if "prefix cache" not in works:
        lines.append("It tells of no cached tokens: whether a reply came from a warm cache is not known.")
    lines += [
        "Only this client's load is known: whoever else used the server meanwhile is not.",
        "Who shared a batch is not seen, only who was in flight: a server may have run them one after another.",
        "Only these prompts, this load and this launch of the server were looked at.",
        "Trials that share a prompt are not independent, so the intervals are for this mix of prompts.",
    ]
    if len(report["fingerprints"]) > 1:
        lines.append("The server gave several fingerprints: it is more than one server, or changed during the run.")
    if any(report["arms"][0]["statistics"][name] for name in ("non_finite_trials",)):
        lines.append("Some logprobs were no numbers; they were not compared.")
    return lines


def _percent(rate: float) -> str:
    return f"{100 * rate:.1f} %"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]
