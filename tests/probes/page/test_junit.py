"""--junit: a test case for each axis and arm; only the subject can fail."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

from detharness.probes.page.junit import junit_xml


def cases(report):
    root = ElementTree.fromstring(junit_xml(report))
    return root, {(case.get("classname"), case.get("name")): case for case in root.iter("testcase")}


def kinds(case):
    return [child.tag for child in case]


def test_a_control_that_moves_passes_and_an_axis_left_out_is_skipped(played):
    report = played()
    root, found = cases(report)
    assert set(found) == {(arm["name"], axis) for arm in report["arms"] for axis in arm["axes"]}
    assert kinds(found["torch/fp32", "batch_size"]) == ["system-out"]
    assert kinds(found["invariant/fp32", "batch_size"]) == ["system-out"]
    assert kinds(found["invariant/fp32", "chunk"]) == ["skipped"]
    assert found["invariant/fp32", "chunk"][0].get("message") == "not tested: left out"
    assert root.get("failures") == "0"
    assert int(root.get("tests")) == len(found)


def test_a_subject_that_moves_fails_with_its_rate_and_both_continuations(played):
    report = played(faulty=("invariant",), axes="batch_size", kernels="invariant")
    root, found = cases(report)
    trials = report["axes"]["batch_size"]["trials"]
    case = found["invariant/fp32", "batch_size"]
    assert kinds(case) == ["failure"]
    assert trials >= 8
    assert f"moved in {trials} of {trials} comparisons (100.0 %, 95 % interval" in case[0].get("message")
    assert "token 0 of the reply" in case[0].text
    assert "  reference: " in case[0].text
    assert root.get("failures") == "1"


def test_bits_that_move_without_a_token_fail_too(server_report):
    server_report["arms"][0]["divergences"] = []
    _, found = cases(server_report)
    assert "Every token stayed the same" in found["m", "co_batching"][0].text


def test_counts_hold_in_every_suite(played):
    root, _ = cases(played())
    for suite in root:
        assert int(suite.get("tests")) == len(list(suite))
        assert int(suite.get("skipped")) == len(list(suite.iter("skipped")))
    assert int(root.get("tests")) == sum(int(suite.get("tests")) for suite in root)


def test_hostile_text_is_valid_xml_and_stays_text(poisoned, hostile):
    poisoned["arms"][0]["axes"][hostile] = poisoned["arms"][0]["axes"]["co_batching"]
    document = junit_xml(poisoned)
    root = ElementTree.fromstring(document)
    assert {element.tag for element in root.iter()} <= {
        "testsuites",
        "testsuite",
        "testcase",
        "failure",
        "skipped",
        "system-out",
    }
    shown = "".join(root.itertext()) + "".join(value for element in root.iter() for value in element.attrib.values())
    assert "<script>alert(1)</script>" in shown
    assert "\\x1b[31m" in shown
    assert not set("\x1b\x00\u202e\ufffe") & set(document.decode())


def test_many_divergences_are_cut(server_report):
    arm = server_report["arms"][0]
    row = arm["divergences"][0]
    arm["divergences"] = [{**row, "context": {**row["context"], "other": "x" * 100_000}}] * 1_000
    document = junit_xml(server_report)
    assert len(document) < 100_000
    assert b"and 980 more in report.json" in document
