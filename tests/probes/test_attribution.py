"""Mutants in miniature: for each axis a fault that only it may find, and that it must find.

One run of all axes per fault. The axis named beside the fault diverges; no other axis does. Every other axis is
identical, except that an axis withdraws (not_tested) where it cannot be told from another: a request that lost its
blocks comes back in other company on other pages, and neighbours that came at other steps hold other bits. Without a
fault nothing moves at all, in axes and in combined trials.
"""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from detharness.probes.axes import AXES
from detharness.probes.runner import run

FAULT_NAMES = (
    "rows counted",
    "slot read",
    "scale of the batch",
    "chunk border read",
    "stale cached page",
    "page length read",
    "pages in order assumed",
    "free slot read",
    "recompute kernel differs",
    "sum per thread",
    "key of the first row",
    "noise of the batch",
    "noise of the slot",
    "key dropped",
    "argmax of mixed batches",
    "masks of the batch",
    "another kernel from 24 requests on",
    "full tile of a neighbour",
    "sample number read",
    "cancelled requests counted",
    "age of a neighbour read",
    "prefill beside decode",
    "samples counted",
    "second run counted",
)

WITHDRAWN = {
    "rows counted": ("preemption", "arrival", "padding"),
    "slot read": ("preemption", "arrival"),
    "scale of the batch": ("preemption", "arrival", "padding"),
    "pages in order assumed": ("preemption",),
}


def play(plan):
    return run(plan, lambda total: nullcontext(lambda note: None), lambda: None).report


def test_every_fault_is_listed_and_every_axis_has_one(faults):
    assert set(FAULT_NAMES) == set(faults)
    assert {axis for axis, _ in faults.values()} == set(AXES)


@pytest.mark.parametrize("fault", FAULT_NAMES)
def test_a_fault_moves_its_own_axis_and_no_other(fault, faults, mini_target, make_plan, monkeypatch):
    monkeypatch.setattr("detharness.probes.arm_plan.rows", lambda count: [])  # Combined trials blame no axis.
    report = play(make_plan(mini_target(fault=fault), kernels="invariant", axes="all"))
    found_by = faults[fault][0]
    expected = dict.fromkeys(AXES, "identical") | {found_by: "diverged"}
    for axis in WITHDRAWN.get(fault, ()):
        expected[axis] = "not_tested"
        assert report["axes"][axis]["reason"] == "not told apart"
    assert {axis: found["status"] for axis, found in report["axes"].items()} == expected
    assert report["verdict"] == "diverged"


def test_a_sound_target_moves_nowhere_and_every_axis_was_exercised(mini_target, make_plan):
    report = play(make_plan(mini_target(), kernels="invariant", axes="all"))
    arm = report["arms"][0]
    assert {axis: found["status"] for axis, found in report["axes"].items()} == dict.fromkeys(AXES, "identical")
    assert all(found["trials"] > 0 and found["exercised"] for found in arm["axes"].values())
    assert {level for found in arm["axes"].values() for level in found["levels"]} >= {"recompute", "reserve"}
    assert arm["combined"]["pairs_covered"] == arm["combined"]["pairs"]
    assert arm["combined"]["exercised"]["preemptions"] > 0
    assert arm["combined"]["exercised"]["cache_hits"] > 0
    assert arm["combined"]["diverged"] == 0
    assert report["verdict"] == "identical"
