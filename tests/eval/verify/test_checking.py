"""Every way in which a run's files can stop being what they were is found, and named by cell or line."""

import json

import pytest

from detharness.errors import UsageError
from detharness.eval.grade.stored import read_grade
from detharness.eval.grade.verdicts import Verdict
from detharness.eval.records import root_of
from detharness.eval.runs import open_run
from detharness.eval.verify.checking import pinned_by, verify_run
from detharness.eval.verify.showing import parse_cell, records_of
from detharness.records.canonical import canonical_bytes


@pytest.fixture
def rows(runs):
    return [runs.row(f"t{number}", line=number + 1) for number in range(3)]


@pytest.fixture
def answers(runs, rows):
    return [runs.answer(row, sample, f"reply {row.task_id} {sample}") for row in rows for sample in range(2)]


def pin(folder, answers, root=None):
    """A grade folder that pins ``answers``."""
    grade = folder / "grade"
    grade.mkdir(exist_ok=True)
    digests = {answer.cell: answer.output.digest for answer in answers}
    report = {"generation_root": root or root_of(digests), "grader_fingerprint": {}, "coverage_complete": True}
    (grade / "report.json").write_bytes(canonical_bytes(report))
    rows = [Verdict(*cell, "text", "correct", 33, (), digest, 1).as_row() for cell, digest in digests.items()]
    (grade / "verdicts.jsonl").write_bytes(b"".join(canonical_bytes(row) + b"\n" for row in rows))
    return grade


def check(folder, root=None):
    grade = folder / "grade"
    return verify_run(open_run(folder), pinned_by(read_grade(grade)) if grade.exists() else None, root=root)


def kinds(verification):
    return [(finding.kind, finding.task_id, finding.sample_index) for finding in verification.findings]


def test_an_untouched_run_holds_whatever_the_order_of_its_records(runs, rows, answers):
    ahead = runs.write(rows, answers, samples=2, name="ahead")
    back = runs.write(rows, answers[::-1], samples=2, name="back")
    pin(back, answers)
    first, second = check(ahead), check(back)
    assert first.holds
    assert second.holds
    assert first.root == second.root == root_of({answer.cell: answer.output.digest for answer in answers})
    assert first.as_report()["graded_root"] is None
    assert second.as_report()["graded_root"] == second.root
    assert second.as_report()["cells"]["answered"] == 6


def edit(answer, **fields):
    """The row of ``answer`` with its output edited by hand, the digests left as they are."""
    row = json.loads(canonical_bytes(answer.as_row()))
    row["output"] |= fields
    return canonical_bytes(row) + b"\n"


@pytest.mark.parametrize("change", [{"text": "reply t1 1 "}, {"token_ids": [1]}, {"finish_reason": "length"}])
def test_an_edited_output_is_damage_and_names_its_cell_and_line(runs, rows, answers, change):
    folder = runs.write(rows, [*answers[:3], edit(answers[3], **change), *answers[4:]], samples=2)
    found = check(folder)
    assert kinds(found) == [("damaged", "t1", 1)]
    assert found.findings[0].where == "generations.jsonl, line 4"
    assert "output_digest" in found.findings[0].detail


def test_an_edited_request_is_damage(runs, rows, answers):
    row = json.loads(canonical_bytes(answers[0].as_row()))
    row["request"]["seed"] += 1
    found = check(runs.write(rows, [canonical_bytes(row) + b"\n", *answers[1:]], samples=2))
    assert kinds(found) == [("damaged", "t0", 0)]
    assert "request_digest" in found.findings[0].detail


def test_an_output_that_was_rewritten_with_its_digest_has_moved_against_the_grade(runs, rows, answers):
    other = runs.answer(rows[1], 1, "another reply, digests and all")
    folder = runs.write(rows, [*answers[:3], other, *answers[4:]], samples=2)
    assert check(folder).holds  # Nothing in the file alone can show it.
    pin(folder, answers)
    assert kinds(check(folder)) == [("moved", "t1", 1)]


def test_a_root_noted_elsewhere_is_held_to(runs, rows, answers):
    folder = runs.write(rows, answers, samples=2)
    root = check(folder).root
    assert check(folder, root=root).holds
    assert kinds(check(folder, root="0" * 64)) == [("root", None, None)]


def test_a_graded_cell_without_its_record_is_gone_and_a_new_one_is_no_damage(runs, rows, answers):
    folder = runs.write(rows, answers[1:], samples=2)
    pin(folder, answers[:4])
    found = check(folder)
    assert kinds(found) == [("gone", "t0", 0)]
    assert found.added == 2


def test_a_grade_whose_verdicts_do_not_give_its_root_is_named(runs, rows, answers):
    folder = runs.write(rows, answers, samples=2)
    pin(folder, answers, root="0" * 64)
    found = check(folder)
    assert kinds(found) == [("root", None, None)]
    assert found.findings[0].where == "verdicts.jsonl"


def test_joined_and_torn_lines_are_named(runs, rows, answers):
    lines = [runs.line(answer) for answer in answers]
    joined = runs.write(rows, [lines[0][:-1] + lines[1], *lines[2:]], samples=2, name="joined")
    found = check(joined)
    assert [(finding.kind, finding.where) for finding in found.findings] == [("joined", "generations.jsonl, line 1")]
    assert len(found.ledger.answers) == 6
    torn = runs.write(rows, [*lines[:5], lines[5][:100]], samples=2, name="torn")
    pin(torn, answers)
    found = check(torn)
    assert [(finding.kind, finding.where) for finding in found.findings] == [
        ("torn", "generations.jsonl, line 6"),
        ("gone", None),
    ]


def test_two_answers_to_a_cell_are_a_conflict(runs, rows, answers):
    found = check(runs.write(rows, [*answers, runs.answer(rows[0], 0, "else")], samples=2))
    assert kinds(found) == [("conflict", "t0", 0)]
    assert found.findings[0].where == "generations.jsonl, line 1 and generations.jsonl, line 7"


def test_an_answer_to_other_messages_or_another_data_row_is_outdated(runs, rows, answers):
    reworded = runs.row("t0", question="How few?", line=1)
    edited = runs.row("t1", gold="34", line=2)
    found = check(runs.write([reworded, edited, rows[2]], answers, samples=2))
    assert kinds(found) == [("outdated", "t0", 0), ("outdated", "t0", 1), ("outdated", "t1", 0), ("outdated", "t1", 1)]
    assert "messages" in found.findings[0].detail
    assert "data row" in found.findings[2].detail


def test_errors_and_cells_beyond_the_run_are_counted_and_are_no_damage(runs, rows, answers):
    extra = runs.answer(runs.row("elsewhere"), 0)
    found = check(runs.write(rows, [*answers[:5], runs.failure(rows[2], 1), extra], samples=2))
    assert found.holds
    assert found.as_report()["cells"] == {
        "expected": 6,
        "answered": 5,
        "errors": 1,
        "added_since_graded": 0,
        "extra": 1,
        "duplicates": 0,
    }


def test_any_changed_character_of_an_output_or_request_is_found(runs, rows, answers):
    # Every position of the fields that the digests cover, one after the other; those outside (clocks, attempts, counts
    # and batch shapes) say nothing about the output.
    line = runs.line(runs.answer(rows[0], 0, "Yes: 33", token_ids=(1, 22)))
    folder = runs.write(rows, [line], samples=2)
    file = folder / "generations.jsonl"
    covered = json.loads(line)
    for name in ("text", "token_ids", "finish_reason"):
        start = line.index(canonical_bytes({name: covered["output"][name]})[1:-1]) + len(name) + 4
        for position in range(start, start + len(canonical_bytes(covered["output"][name])) - 2):
            changed = bytearray(line)
            changed[position] ^= 1
            file.write_bytes(changed)
            assert found_out(folder), bytes(changed)


def found_out(folder):
    """Whether the run no longer holds, or is refused with its line named."""
    try:
        return not check(folder).holds
    except UsageError as error:
        return "line 1" in str(error)


def test_a_reply_is_found_by_its_cell(runs, rows, answers):
    folder = runs.write(rows, [runs.failure(rows[1], 1), *answers], samples=2)
    run = open_run(folder)
    found = records_of(run, parse_cell("t1:1", run))
    assert [(place, record.status) for place, record in found] == [
        ("generations.jsonl, line 1", "error"),
        ("generations.jsonl, line 5", "ok"),
    ]


def test_an_id_may_hold_colons(runs):
    row = runs.row("a:b:1")
    run = open_run(runs.write([row], [runs.answer(row)]))
    assert parse_cell("a:b:1:0", run) == ("a:b:1", 0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("t0", "TASK:SAMPLE"),
        ("t0:x", "TASK:SAMPLE"),
        ("t0:²", "TASK:SAMPLE"),
        ("t9:0", "no task"),
        ("t0:2", "2 samples"),
    ],
)
def test_what_is_no_cell_is_refused(runs, rows, answers, text, message):
    run = open_run(runs.write(rows, answers, samples=2))
    with pytest.raises(UsageError, match=message):
        parse_cell(text, run)


def test_a_cell_that_was_never_answered_is_refused(runs, rows, answers):
    run = open_run(runs.write(rows, answers[1:], samples=2))
    with pytest.raises(UsageError, match="never answered"):
        records_of(run, ("t0", 0))
