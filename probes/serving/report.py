"""A server's ``report.json``: a pure function of the manifest and of ``trials.jsonl``. No clock, no path, no key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from detharness.probes.arms import framed
from detharness.probes.divergence_rows import Margins
from detharness.probes.findings import minority
from detharness.probes.serving.findings import all_findings
from detharness.probes.serving.plays import AXES
from detharness.probes.serving.repeated_runs import repeated_runs
from detharness.probes.serving.tally import PromptTally, Row, Tally
from detharness.probes.serving.wording import not_shown, summary
from detharness.statistics.proportions import wilson_interval, zero_event_upper_bound
from detharness.statistics.survival import survival_curve

_COMPLETIONS = 20  # Distinct replies shown whole, for each prompt; all of them are counted.
_DIVERGENCES = 200


def build_report(manifest: Mapping[str, Any], rows: Iterable[Row]) -> dict[str, Any]:
    """The report of a run, complete or cut short."""
    tally = Tally({prompt["id"]: PromptTally() for prompt in manifest["prompts"]})
    for row in rows:
        tally.add(row)
    config = manifest["effective_config"]
    played = sorted({play["axis"] for play in manifest["plays"] if play["axis"] is not None})
    found = all_findings(tally, played)
    arm = {
        "name": "server",
        "kernels": None,
        "role": "subject",
        "backend": None,
        "certificate": None,
        "dtype": None,
        "complete": tally.end is not None and tally.end["ended"] is None,
        "verdict": "diverged" if tally.moved else "identical" if tally.compared else "not_tested",
        "prompts": [_prompt(name, prompt) for name, prompt in tally.prompts.items()],
        "axes": {name: findings.axis for name, findings in found.items()},
        "combined": _combined(tally),
        "statistics": _statistics(tally),
        "divergences": _divergences(tally),
    }
    report = {
        **framed(manifest, "server", [arm], AXES),
        "capabilities": tally.capabilities,
        "findings": {name: findings.finding for name, findings in found.items()},
        "fingerprints": list(tally.fingerprints),
        "requests": tally.requests,
        "errors": [
            {"kind": kind, "count": count, "first": tally.messages[kind]}
            for kind, count in sorted(tally.errors.items())
        ],
        "ended": None if tally.end is None else tally.end["ended"],
        "preset": repeated_runs(next(iter(tally.prompts.values()))) if config["preset"] is not None else None,
    }
    return {**report, "summary": summary(report), "not_shown": not_shown(report)}


def exit_code(report: Mapping[str, Any], *, interrupted: bool) -> int:
    """130 interrupted, 1 something moved, 3 an axis named was not tested or the server went away, else 0."""
    if interrupted:
        return 130
    if report["verdict"] == "diverged":
        return 1
    named = report["effective_config"]["axes_by_name"] or []
    untested = report["verdict"] == "not_tested" or any(report["axes"][n]["status"] == "not_tested" for n in named)
    return 3 if untested or report["ended"] == "server" else 0


def _prompt(name: str, prompt: PromptTally) -> dict[str, Any]:
    replies = prompt.outputs.total()
    modal = max(prompt.outputs.values(), default=0)
    shown = sorted(prompt.outputs, key=lambda output: (output != 0, -prompt.outputs[output], output))[:_COMPLETIONS]
    return {
        "id": name,
        "trials": replies,
        "unique_completions": len(prompt.outputs),
        "modal_count": modal,
        "minority": minority(replies - modal, replies),
        "diverged": prompt.moved,
        "first_token_divergence": prompt.first_token,
        "first_token_position": prompt.first_position,
        "first_logprob_divergence": prompt.first_logprob,
        "first_logits_divergence": None,
        "max_logprob_gap": prompt.max_logprob_gap,
        "max_ulp": None,
        "margin_at_divergence": prompt.margin,
        "divergence_class": prompt.firmest,
        "completions": [
            {"count": prompt.outputs[one], "text": prompt.texts[one], "parts_at": prompt.parts_at[one]} for one in shown
        ],
    }


def _combined(tally: Tally) -> dict[str, Any]:
    """Trials in which more than one thing differed: they blame no axis."""
    groups = {key: group for key, group in tally.groups.items() if key[0] is None}
    levels: dict[str, dict[str, int]] = {}
    for (_, _, level, _), group in groups.items():
        counts = levels.setdefault(level, {"trials": 0, "diverged": 0})
        counts["trials"] += group.trials
        counts["diverged"] += group.moved
    return {
        "trials": sum(group.trials for group in groups.values()),
        "diverged": sum(group.moved for group in groups.values()),
        "levels": levels,
        "exercised": {},
        "pairs_covered": 0,
        "pairs": 0,
    }


def _statistics(tally: Tally) -> dict[str, Any]:
    n = tally.compared
    trials = [trial for trial, count in tally.survival.items() for _ in range(count)]
    return {
        "tokens_compared": tally.tokens,
        "trials": n,
        "diverged": tally.moved,
        "non_finite_trials": tally.non_finite,
        "rate_interval_95": list(wilson_interval(tally.moved, n)) if n else None,
        "upper_bound_95": zero_event_upper_bound(n) if n and not tally.moved else None,
        "diverged_tokens": tally.moved_tokens,
        "token_rate_interval_95": list(wilson_interval(tally.moved_tokens, n)) if n else None,
        "survival": [asdict(point) for point in survival_curve(trials)],
    }


def _divergences(tally: Tally) -> list[dict[str, Any]]:
    margins = Margins(prompt.reference["margins"] for prompt in tally.prompts.values() if prompt.reference is not None)
    rows = []
    for kept in list(tally.divergences.values())[:_DIVERGENCES]:
        row, comparison = kept["row"], kept["row"]["comparison"]
        located = tally.located.get((row["prompt"], row["output"]))
        where = comparison if located is None else {**comparison, **located, "first_token": located["index"]}
        margin = comparison["margin"]
        prompt_tokens = None if comparison["position"] is None else comparison["position"] - comparison["first_token"]
        rows.append(
            {
                "prompt": row["prompt"],
                "axis": row["axis"] if row["exercised"] and not row["confounded"] else None,
                "level": row["level"],
                "count": kept["count"],
                "prompt_tokens": prompt_tokens,
                "index": where["first_token"],
                "position": None if prompt_tokens is None else prompt_tokens + where["first_token"],
                "method": where["method"],
                "interval": where["interval"],
                "byte_offset": where["byte_offset"],
                "margin": margin,
                "margin_rank": None if margin is None else margins.rank(margin),
                "median_margin": margins.median,
                "drift_median": comparison["median_logprob_gap"],
                "drift_max": comparison["max_logprob_gap"],
                "divergence_class": comparison["divergence_class"],
                "forced": None if located is None else located["forced"],
                "context": kept["context"] or {"common": "", "reference": "", "other": ""},
            }
        )
    return rows
