"""A run as one block of GitHub-flavoured Markdown to paste: versions, n beside every rate, and what was not looked at.

Text from outside stands in code spans, made so that nothing in it can end the span, the cell or the line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from detharness import __version__
from detharness.probes.page.sentences import headline, margin_sentence, number, percent, place
from detharness.rendering.escape import one_line, visible

_PROMPTS = 30
_CAPABILITIES = 40
_LINES = 40
_TEXT = 120  # Characters of one text.
_SENTENCE = 600
_MARKS = {"identical": "✅", "works": "✅", "diverged": "❌", "ignored": "❌", "absent": "⬛", "not_tested": "⬜"}

_FORMATTING = re.compile(r"[\\`*_{}\[\]<>|~!&$]|:(?=//)|(?<=www)\.|^\W")  # Any of it may stand behind a backslash.
_MENTION = re.compile("[@#]")  # A backslash does not keep GitHub from these.


def markdown_summary(report: Mapping[str, Any]) -> str:
    """The whole block; it ends with a newline."""
    name = str(report["effective_config"].get("target") or report["target"].get("model"))
    parts = [
        f"### detharness probe of {code(name)}: {_mark(report['verdict'])}",
        headline(report),
        *_axes(report),
        *_prompts(report),
        *_divergence(report),
        *_capabilities(report),
        *_versions(report),
        "**Not looked at**",
        "\n".join(f"- {prose(line)}" for line in report["not_shown"][:_LINES]),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def code(text: str, length: int = _TEXT) -> str:
    """``text`` on one line as a code span, also inside a table's cell; cut at ``length`` characters."""
    shown = visible(text if len(text) <= length else text[:length] + "...") or " "
    shown = shown.replace("|", "\\|")
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", shown)), default=0))
    edge = " " if shown[0] in "` " or shown[-1] in "` " else ""
    return f"{fence}{edge}{shown}{edge}{fence}"


def prose(text: str) -> str:
    """A sentence of ours on one line, which may name things from outside: nothing in it formats, links or mentions."""
    shown = one_line(text if len(text) <= _SENTENCE else text[:_SENTENCE] + "...")
    return _MENTION.sub(r"\g<0><!-- -->", _FORMATTING.sub(r"\\\g<0>", shown))


def _mark(status: str) -> str:
    return f"{_MARKS.get(status, '❔')} {status.replace('_', ' ')}"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _axes(report: Mapping[str, Any]) -> list[str]:
    arms = report["arms"]
    names = list(dict.fromkeys(name for arm in arms for name in arm["axes"]))
    rows = [[code(name), *(_cell(arm["axes"].get(name)) for arm in arms)] for name in names]
    if any(arm.get("combined") for arm in arms):
        rows.append(["several at once", *(_cell(_as_axis(arm.get("combined"))) for arm in arms)])
    rows.append(["**verdict**", *(f"**{_mark(arm['verdict'])}**" for arm in arms)])
    heads = [f"{code(arm['name'])} ({arm['role']})" for arm in arms]
    return [_table(["moved of n", *heads], rows)]


def _as_axis(combined: Mapping[str, Any] | None) -> Mapping[str, Any]:
    if not combined or not combined["trials"]:
        return {"status": "not_tested", "reason": "left out"}
    status = "diverged" if combined["diverged"] else "identical"
    return {"status": status, "diverged": combined["diverged"], "trials": combined["trials"]}


def _cell(axis: Mapping[str, Any] | None) -> str:
    if axis is None or axis["status"] == "not_tested":
        return f"{_mark('not_tested')}: {'not in this arm' if axis is None else prose(axis['reason'])}"
    return f"{_mark(axis['status'])} {axis['diverged']} of {axis['trials']}"


def _prompts(report: Mapping[str, Any]) -> list[str]:
    """Prompts that got more than one reply, in any arm."""
    found = [(arm, prompt) for arm in report["arms"] for prompt in arm["prompts"] if prompt["unique_completions"] > 1]
    if not found:
        return []
    rows = []
    for arm, prompt in found[:_PROMPTS]:
        minority = prompt["minority"]
        low, high = minority["interval_95"]
        rate = f"{percent(minority['rate'])} ({percent(low)} to {percent(high)}), n = {minority['n']}"
        first = prompt["first_token_divergence"]
        where = "-" if first is None else f"token {first}"
        count = str(prompt["unique_completions"])
        rows.append([code(arm["name"]), code(prompt["id"]), count, rate, where, number(prompt["margin_at_divergence"])])
    columns = ["arm", "prompt", "different replies", "not the commonest (95 %)", "first differs at", "margin there"]
    left_out = [f"and {len(found) - _PROMPTS} more prompts."] if len(found) > _PROMPTS else []
    return [_table(columns, rows), *left_out]


def _divergence(report: Mapping[str, Any]) -> list[str]:
    """One divergence, of the subject if it has one: the common text and both continuations."""
    arms = sorted(report["arms"], key=lambda arm: arm["role"] != "subject")
    found = next(((arm, row) for arm in arms for row in arm["divergences"] if row["context"] is not None), None)
    if found is None:
        return []
    arm, row = found
    context = row["context"]
    axis = code(row["axis"] or "several at once")
    said = (
        f"For example, prompt {code(row['prompt'])} in {code(arm['name'])} ({axis}, {code(row['level'])}) parts at "
        f"{place(row)}: after {code(context['common'][-_TEXT:])} it goes on with {code(context['reference'])} or with "
        f"{code(context['other'])}. {margin_sentence(row)}"
    )
    return [said]


def _capabilities(report: Mapping[str, Any]) -> list[str]:
    found = report.get("capabilities") or []
    if not found:
        return []
    rows = [[code(one["name"]), _mark(one["status"]), code(str(one["detail"] or "-"))] for one in found[:_CAPABILITIES]]
    return [_table(["the server", "found", "detail"], rows)]


def _versions(report: Mapping[str, Any]) -> list[str]:
    environment = report["environment"]
    packages = environment.get("packages") or {}
    cpu = environment.get("cpu") or {}
    told = [f"detharness {__version__}", f"python {environment.get('python')}"]
    told += [f"{name} {version}" for name, version in sorted(packages.items()) if version is not None]
    told += [str(cpu["model"])] if cpu.get("model") else []
    target = report["target"]
    told += [f"{name} {target[name]}" for name in ("model_digest", "server", "fingerprint") if target.get(name)]
    return ["**Versions**: " + ", ".join(code(one) for one in told)]
