"""A grade that is read again: whole, or refused by file, line and field."""

import json

import pytest

from detharness.errors import UsageError
from detharness.eval.grade.stored import read_grade
from detharness.eval.grade.verdicts import Verdict
from detharness.records.canonical import canonical_bytes

REPORT = {"generation_root": "a" * 64, "grader_fingerprint": {"grader": "rules"}, "coverage_complete": False}
VERDICTS = [
    Verdict("t0", 0, "text", "correct", 33, ("fallback",), "b" * 64, 1),
    Verdict("t0", 1, "image", "error", None, (), None, 3, confidence=50),
]


def write(folder, report=REPORT, rows=None):
    rows = [verdict.as_row() for verdict in VERDICTS] if rows is None else rows
    (folder / "report.json").write_text(json.dumps(report))
    (folder / "verdicts.jsonl").write_bytes(b"".join(canonical_bytes(row) + b"\n" for row in rows))
    return folder


def test_a_grade_reads_back(tmp_path):
    grade = read_grade(write(tmp_path))
    assert grade.verdicts == {verdict.cell: verdict for verdict in VERDICTS}
    assert (grade.root, grade.fingerprint, grade.complete) == ("a" * 64, {"grader": "rules"}, False)


@pytest.mark.parametrize("name", list(REPORT))
def test_a_report_without_a_field_is_refused(tmp_path, name):
    with pytest.raises(UsageError, match=rf"report\.json: the field '{name}'"):
        read_grade(write(tmp_path, report={key: value for key, value in REPORT.items() if key != name}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sample_index": "0"}, "line 2: the field 'sample_index'"),
        ({"sample_index": True}, "line 2: the field 'sample_index'"),
        ({"verdict": "right"}, "line 2: 'right' is no verdict"),
        ({"verdict": []}, r"line 2: \[\] is no verdict"),
        ({"output_digest": 5}, "line 2: the field 'output_digest'"),
        ({"sample_index": 0}, "line 2: the cell has a verdict above"),
    ],
)
def test_a_damaged_verdict_is_refused_by_its_line(tmp_path, change, message):
    rows = [VERDICTS[0].as_row(), {**VERDICTS[1].as_row(), **change}]
    with pytest.raises(UsageError, match=rf"verdicts\.jsonl, {message}"):
        read_grade(write(tmp_path, rows=rows))


def test_a_folder_without_a_grade_is_refused(tmp_path):
    with pytest.raises(UsageError, match="holds no grade"):
        read_grade(tmp_path)
