"""What only runs against a server have: what it can do, and its rates alone against those under load."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from detharness.probes.page.blocks import flat_rows, key_table, marked, wide_table
from detharness.probes.page.sentences import axis_words, finding_sentence
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
