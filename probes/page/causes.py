"""From symptom to cause, where a run was localised: the first operator that differs, and how."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from detharness.probes.page.blocks import flat_rows, key_table, more
from detharness.rendering.html import Html, excerpt, tag

_SHOWN = 10
_KEYS = 40
_NAME_BYTES = 120
_HEAD = ("arm", "axis", "prompt", "status", "operator", "layer", "position")


def cause_blocks(report: Mapping[str, Any]) -> list[Html]:
    """A block for each divergence that was localised; nothing where none was."""
    causes = report.get("causes") or []
    found = []
    for cause in causes[:_SHOWN]:
        rest = {name: value for name, value in cause.items() if name not in _HEAD and value is not None}
        found.append(tag("article", tag("p", cause_sentence(cause)), key_table(flat_rows(rest), _KEYS)))
    return [*found, *more(len(causes) - _SHOWN, "causes")]


def cause_sentence(cause: Mapping[str, Any]) -> str:
    """Which operator parts the two runs first, or why none is named."""
    names = [excerpt(f"{name} {cause[name]}", _NAME_BYTES) for name in ("arm", "axis", "prompt") if cause.get(name)]
    status = cause.get("status", "found")
    if status == "not_reproduced":
        said = "the two runs agree when every operator is observed, so none is named"
    elif status == "unexplained" or cause.get("operator") is None:
        said = "the replies differ, and every operator that was observed agrees"
    else:
        layer = cause.get("layer")
        within = f"layer {layer}" if layer is not None and layer >= 0 else "outside the layers"
        said = f"the first operator that differs is {cause['operator']}, {within}, at position {cause['position']}"
    return f"{', '.join(names)}: {said}."
