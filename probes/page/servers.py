"""What only runs against a server have: what it can do, and its rates alone against those under load."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from detharness.probes.page.blocks import flat_rows, key_table, marked, wide_table
from detharness.probes.page.sentences import axis_words, rate
from detharness.rendering.html import Html, excerpt, tag

_DETAIL_BYTES = 400
_NAME_BYTES = 120
_CAPABILITIES = 60
_FINDINGS = 12
_KEYS = 30
_RATES = ("solo", "loaded", "test", "p_value")


def capability_table(report: Mapping[str, Any]) -> list[Html]:
    """What was tried of the server before the probe, and whether it worked; nothing for other kinds of run."""
    rows = [
        (excerpt(one["name"], _NAME_BYTES), marked(one["status"]), excerpt(str(one["detail"] or ""), _DETAIL_BYTES))
        for one in report.get("capabilities", [])[:_CAPABILITIES]
    ]
    return [wide_table(("asked for", "found", "detail"), rows, label="capabilities", texts=3)] if rows else []


def finding_table(report: Mapping[str, Any]) -> list[Html]:
    """Each finding alone and under load, with the test between them and the counts it rests on."""
    found: list[Html] = []
    for name, finding in list(report.get("findings", {}).items())[:_FINDINGS]:
        found += [tag("h3", excerpt(f"{name}: {axis_words(name)}", _NAME_BYTES)), tag("p", finding_sentence(finding))]
        rest = {key: value for key, value in finding.items() if key not in _RATES}
        if rest:
            found.append(key_table(flat_rows(rest), _KEYS))
    return found


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
