"""The axis matrix: one row an axis, one column an arm; colour, shape and words say the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from detharness.probes.page.blocks import each_arm, marked, more, plain, wide_table
from detharness.probes.page.sentences import axis_words
from detharness.rendering.html import Html, excerpt, tag

_LEVELS = 240
_PROOF_BYTES = 400
_NAME_BYTES = 120


def axis_matrix(report: Mapping[str, Any]) -> Html:
    """Every axis in every arm, moved trials of all trials, and what was not tested with its reason."""
    arms = report["arms"]
    names = list(dict.fromkeys(name for arm in arms for name in arm["axes"]))
    rows = [[_axis_name(name), *(_cell(arm["axes"].get(name)) for arm in arms)] for name in names]
    if any(arm.get("combined") for arm in arms):
        rows.append([_named("combined", "several at once"), *(_combined(arm.get("combined")) for arm in arms)])
    rows.append([tag("strong", "verdict"), *(marked(arm["verdict"]) for arm in arms)])
    heads = [excerpt(f"{arm['name']} ({arm['role']})", _NAME_BYTES) for arm in arms]
    return wide_table(["what was varied", *heads], rows, label="axes by arm")


def level_tables(report: Mapping[str, Any]) -> list[Html]:
    """For each arm what was varied in detail, with the counters that prove it, folded away."""
    found = []
    cap = each_arm(report, _LEVELS)
    for arm in report["arms"]:
        rows = [
            (_axis_name(name), excerpt(level, _NAME_BYTES), str(counts["trials"]), str(counts["diverged"]))
            for name, axis in arm["axes"].items()
            for level, counts in axis["levels"].items()
        ]
        proof = [
            (_axis_name(name), excerpt(plain(axis["exercised"]), _PROOF_BYTES))
            for name, axis in arm["axes"].items()
            if axis["exercised"]
        ]
        if rows:
            head = excerpt(f"{arm['name']}: levels, and the proof that they were exercised", _NAME_BYTES)
            tables = [
                wide_table(("axis", "level", "trials", "moved"), rows[:cap], label="levels", texts=2),
                *more(len(rows) - cap, "levels"),
                wide_table(("axis", "counters"), proof, label="proof", texts=2),
            ]
            found.append(tag("details", tag("summary", head), *tables))
    return found


def _axis_name(name: str) -> Html:
    words = axis_words(name)
    return _named(name, "" if words == name.replace("_", " ") else words)


def _named(name: str, words: str) -> Html:
    return Html(f"{tag('strong', excerpt(name, _NAME_BYTES))} {tag('small', words)}")


def _cell(axis: Mapping[str, Any] | None) -> Html:
    if axis is None:
        return marked("not_tested", "not in this arm")
    if axis["status"] == "not_tested":
        return marked("not_tested", f"not tested: {axis['reason']}")
    tokens = f", text in {axis['diverged_tokens']}" if axis["diverged_tokens"] else ""
    return marked(axis["status"], f"{axis['status']}: {axis['diverged']} of {axis['trials']}{tokens}")


def _combined(combined: Mapping[str, Any] | None) -> Html:
    if not combined or not combined["trials"]:
        return marked("not_tested", "not tested: left out")
    status = "diverged" if combined["diverged"] else "identical"
    return marked(status, f"{status}: {combined['diverged']} of {combined['trials']}")
