"""A run as JUnit test cases for CI: one for each axis of each arm.

The subject's divergence is a failure; a control that moves is the expected finding and passes; what was not tested is
skipped, with its reason. No clock: the same report gives the same bytes.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from typing import Any

from detharness.probes.page.sentences import axis_words, place, rate
from detharness.rendering.escape import reading_lines

_SHOWN = 20  # Divergences told in one failure.
_TEXT = 300  # Characters of one text.
_NO_XML = re.compile("[\ufffe\uffff]")  # Characters that XML cannot hold and that nobody sees.


def junit_xml(report: Mapping[str, Any]) -> bytes:
    """The run as one <testsuites> of one <testsuite> an arm."""
    root = ElementTree.Element("testsuites", name="detharness probe")
    for arm in report["arms"]:
        suite = ElementTree.SubElement(root, "testsuite", name=_text(arm["name"]))
        for name, axis in arm["axes"].items():
            _case(suite, arm, name, axis)
        _count(suite)
    _count(root)
    ElementTree.indent(root)
    return bytes(ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)) + b"\n"


def _case(suite: ElementTree.Element, arm: Mapping[str, Any], name: str, axis: Mapping[str, Any]) -> None:
    case = ElementTree.SubElement(suite, "testcase", classname=_text(arm["name"]), name=_text(name))
    if axis["status"] == "not_tested":
        ElementTree.SubElement(case, "skipped", message=_text(f"not tested: {axis['reason']}"))
        return
    said = f"{name} ({axis_words(name)}): replies moved in {rate(axis['diverged'], axis['trials'])}"
    if axis["status"] == "diverged" and arm["role"] == "subject":
        failure = ElementTree.SubElement(case, "failure", type="diverged", message=_text(said))
        failure.text = "\n".join(_text(line) for line in _lines(arm, name))
    else:
        ElementTree.SubElement(case, "system-out").text = _text(said)


def _lines(arm: Mapping[str, Any], axis: str) -> list[str]:
    """Where the tokens part, with both continuations."""
    rows = [row for row in arm["divergences"] if row["axis"] == axis]
    lines = []
    for row in rows[:_SHOWN]:
        lines.append(f"prompt {row['prompt']!r}, {row['level']}: {place(row)} of the reply")
        if row["context"] is not None:
            lines += [f"  {side}: {row['context'][side]!r}" for side in ("common", "reference", "other")]
    if len(rows) > _SHOWN:
        lines.append(f"and {len(rows) - _SHOWN} more in report.json")
    return lines or ["Every token stayed the same; logprobs or logits moved."]


def _count(element: ElementTree.Element) -> None:
    for attribute, tag in (("tests", "testcase"), ("failures", "failure"), ("skipped", "skipped")):
        element.set(attribute, str(len(list(element.iter(tag)))))
    element.set("errors", "0")


def _text(text: str) -> str:
    shown = reading_lines(text[:_TEXT])
    return _NO_XML.sub(lambda found: f"\\u{ord(found[0]):04x}", shown)
