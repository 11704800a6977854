"""Causes in plain lines, as a terminal shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from detharness.probes.causes.cause import OUTSIDE


def cause_lines(causes: Sequence[Mapping[str, Any]]) -> list[str]:
    """One or two lines for each cause of a report."""
    lines = []
    for cause in causes:
        where = f"{cause['arm']}, {cause['axis'] or 'several things at once'}, prompt {cause['prompt']}"
        if cause["status"] is not None:
            lines.append(f"{where}: {_localized(cause)}")
        if cause["shrunk"] is not None:
            lines.append(f"{where}: {_shrunk(cause['shrunk'])}")
    return lines


def _localized(cause: Mapping[str, Any]) -> str:
    if cause["status"] == "not_repeated":
        return "played again, the two replies agreed, so the difference is not one of schedule alone."
    observed = "" if cause["same_bits_observed"] else " (observing changed the bits)"
    if cause["status"] == "not_reproduced":
        return f"not reproduced while every operator is observed, one by one{observed}."
    if cause["status"] == "unexplained":
        return f"every operator, the logprobs and the draw agree, and the replies do not{observed}."
    layer = "outside the layers" if cause["layer"] == OUTSIDE else f"in layer {cause['layer']}"
    trial, reference = cause["schedule"]["trial"], cause["schedule"]["reference"]
    plan = f", plan {', '.join(cause['plan'])}" if cause["plan"] else ""
    return (
        f"the first operator that differs is {cause['operator']} {layer}, at position {cause['position']}, step "
        f"{cause['step']}: {_seat(trial)}; in the reference {_seat(reference)}{plan}{_distances(cause)}{observed}."
    )


def _seat(side: Mapping[str, Any]) -> str:
    return (
        f"row {side['row']} of {side['rows_in_step']}, request {side['slot']} of {side['requests_in_step']}, "
        f"{side['kind']}, {side['threads']} threads"
    )


def _distances(cause: Mapping[str, Any]) -> str:
    bins = cause["ulp_histogram"]
    if bins is None:
        return ""
    moved = [f"{one['count']} by {_range(one)}" for one in bins if one["high"] > 0]
    return f"; of {sum(one['count'] for one in bins)} elements moved: {', '.join(moved)} ULP"


def _range(one: Mapping[str, int]) -> str:
    return str(one["low"]) if one["low"] == one["high"] else f"{one['low']} to {one['high']}"


def _shrunk(shrunk: Mapping[str, Any]) -> str:
    before, after = shrunk["before"], shrunk["after"]
    if after is None:
        return "could not be shrunk: played again, the two replies agreed."
    end = "nothing smaller fails" if shrunk["minimal"] else f"the search ended at {shrunk['replays']} replays"
    return (
        f"shrunk from {before['requests']} requests of {before['prompt_tokens']} prompt tokens to {after['requests']} "
        f"of {after['prompt_tokens']} in {shrunk['replays']} of at most {shrunk['most_replays']} replays ({end}): "
        f"{shrunk['file']}"
    )
