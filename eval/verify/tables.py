"""A verification on the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from detharness.eval.records import Generation
from detharness.rendering.escape import one_line, reading_lines
from detharness.rendering.tables import make_table

_ROWS = 50  # A file that was edited throughout gives thousands of findings; --json lists them all.


def print_verification(console: Console, report: Mapping[str, Any]) -> None:
    """Print what was counted, found and asked again."""
    cells = report["cells"]
    counts = [
        (name.replace("_", " "), cells[name]) for name in cells if cells[name] or name in ("expected", "answered")
    ]
    console.print(make_table(("cells", "number"), counts))
    console.print(Text(f"root of the outputs: {report['generation_root']}"))
    if report["graded_root"] is not None:
        console.print(Text(f"root at grading:     {report['graded_root']}"))
    findings = report["findings"]
    if findings:
        rows = [
            (found["kind"], found["task_id"], found["sample_index"], found["where"], found["detail"])
            for found in findings[:_ROWS]
        ]
        console.print(make_table(("finding", "task", "sample", "where", "what"), rows))
    if len(findings) > _ROWS:
        console.print(Text(f"and {len(findings) - _ROWS} more: --json lists them all."))
    if report["regenerated"] is not None:
        _print_regenerated(console, report["regenerated"])
    console.print(Text(one_line(_sentence(report))))


def _print_regenerated(console: Console, results: list[Mapping[str, Any]]) -> None:
    rows = []
    for result in results:
        difference = result["first_difference"]
        where = there = now = None
        if difference is not None:
            index = difference["index"]
            where = difference["part"] if index is None else f"{difference['part']} {index}"
            there, now = difference["text"] or difference["token_ids"] or (None, None)
        rows.append(
            (
                result["task_id"],
                result["sample_index"],
                result["outcome"],
                result["logprob_bits"],
                result["error"] or where,
                None if there is None else str(there),
                None if now is None else str(now),
            )
        )
    columns = ("task", "sample", "asked again", "logprob bits", "first difference", "recorded", "now")
    console.print(make_table(columns, rows))


def _sentence(report: Mapping[str, Any]) -> str:
    said = []
    if report["findings"]:
        count = len(report["findings"])
        said.append(f"{count} finding{'s' if count > 1 else ''}: the files are not what they were.")
    else:
        against = "" if report["graded_root"] is None else " and to the grade that pinned them"
        said.append(f"Every digest fits its record; the outputs hold to their digests{against}.")
    if report["regenerated"] is not None:
        said += _asked_again(report["regenerated"])
    return " ".join(said)


def _asked_again(results: list[Mapping[str, Any]]) -> list[str]:
    if not results:
        return ["The run holds no answer that could be asked for again."]
    outcomes = [result["outcome"] for result in results]
    counts = ", ".join(
        f"{outcomes.count(outcome)} {word}"
        for outcome, word in (("identical", "identical"), ("moved", "moved"), ("failed", "not tested"))
    )
    said = [f"Asked again: {counts}."]
    if bits := sum(result["logprob_bits"] == "different" for result in results):
        said.append(f"Logprob bits differ in {bits} of them.")
    return said


def reply_lines(place: str, record: Generation) -> list[str]:
    """One record whole, line by line, everything unseen in it escaped."""
    head = (
        f"--- {place}: task {record.task_id}, sample {record.sample_index}, attempt {record.attempt}, {record.status}"
    )
    lines = [one_line(head)]
    if record.output is None:
        error = record.error or {}
        lines.append(one_line(f"error: {error.get('kind')}: {error.get('detail')}"))
        return lines
    lines.append(one_line(f"finish reason: {record.output.finish_reason}"))
    if record.output.reasoning is not None:
        lines += ["--- reasoning", *reading_lines(record.output.reasoning).split("\n")]
    text = "(the target sent no text)" if record.output.text is None else record.output.text
    return [*lines, "--- text", *reading_lines(text).split("\n")]
