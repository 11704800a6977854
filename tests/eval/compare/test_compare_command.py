"""``detharness eval compare`` from two folders to its files: what is graded, what is controlled, and how it ends."""

import itertools
import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from detharness.cli.evaluation import evaluation
from detharness.eval.grade.judge import PARAMS
from detharness.eval.grade.judge_cache import CachedReply, JudgeIdentity, JudgeKey, cache_row
from detharness.eval.grade.judge_prompt import OWN_TEMPLATE
from detharness.records.canonical import canonical_bytes, parse_json
from detharness.records.digests import sha256_bytes

RIGHT, WRONG = "The answer is \\boxed{33}.", "The answer is \\boxed{12}."


@pytest.fixture
def command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # Where no --out is given, the folder is made in runs/ here.

    def call(name, *arguments):
        done = CliRunner().invoke(evaluation, [name, *map(str, arguments)])
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        return done

    return call


@pytest.fixture
def make(runs):
    """A run of two tasks and two samples; ``replies``: cell -> text in place of a right one, None to leave it out."""
    numbers = itertools.count()
    rows = [runs.row(f"t{number}", line=number + 1) for number in range(2)]

    def made(replies=None, **fields):
        texts = {(row.task_id, sample): f"{row.task_id} {sample} {RIGHT}" for row in rows for sample in range(2)}
        texts.update(replies or {})
        answers = [
            runs.answer(row, sample, texts[row.task_id, sample], **fields)
            for row in rows
            for sample in range(2)
            if texts[row.task_id, sample] is not None
        ]
        return runs.write(rows, answers, samples=2, answer_kind="integer", name=f"made{next(numbers)}")

    return made


def compared(done):
    return json.loads(done.stdout.splitlines()[-1])


def test_a_run_against_itself_is_the_same_and_ends_with_0(command, make):
    folder = make()
    done = command("compare", folder, folder, "--json")
    report = compared(done)
    assert (done.exit_code, report["exit_code"], report["verdict"]) == (0, 0, "same")
    assert report["null_control"]["holds"]
    made = Path("runs/compare-0001")
    assert {path.name for path in made.iterdir()} == {"manifest.json", "compare.json", "compare.html"}
    assert parse_json((made / "compare.json").read_bytes()) == {k: v for k, v in report.items() if k != "exit_code"}


def test_equal_scores_with_moved_outputs_end_with_1_and_say_so(command, make):
    a, b = make({("t0", 0): WRONG}), make({("t1", 1): WRONG})
    done = command("compare", a, b, "--json")
    report = compared(done)
    assert (done.exit_code, report["verdict"]) == (1, "score_equal_outputs_moved")
    assert report["score"]["pass_at_1"]["a"] == report["score"]["pass_at_1"]["b"] == {"exact": "3/4", "value": 0.75}
    assert [(row["task_id"], row["sample_index"]) for row in report["differing_cells"]] == [("t0", 0), ("t1", 1)]
    assert "Equal scores, moved outputs" in done.stderr


def test_runs_without_a_grade_are_graded_for_the_comparison_and_nothing_is_left_in_them(command, make):
    a, b = make(), make({("t0", 0): WRONG})
    command("grade", a)
    before = {path.name for path in b.iterdir()}
    done = command("compare", a, b, "--json")
    report = compared(done)
    assert (report["runs"]["a"]["grade"], report["runs"]["b"]["grade"]) == ("stored", "made_now")
    assert report["graders_comparable"]
    assert report["score"]["difference"]["exact"] == "-1/4"
    assert "Run B held no grade; it was graded for this comparison" in done.stderr
    assert {path.name for path in b.iterdir()} == before


def test_a_grade_asked_for_by_name_must_be_there(command, make):
    a, b = make(), make()
    command("grade", a, "--mode", "lenient")
    done = command("compare", a, b, "--grade", "grade-lenient")
    assert done.exit_code == 2
    assert "holds no grade of the name grade-lenient" in done.stderr
    command("grade", b, "--mode", "lenient")
    assert command("compare", a, b, "--grade", "grade-lenient").exit_code == 0
    assert command("compare", a, b, "--grade", "../grade").exit_code == 2


def test_a_grade_of_other_outputs_is_refused(command, make, runs):
    folder, other = make({("t1", 1): None}), make()
    command("grade", folder)
    path = folder / "generations.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    moved = runs.line(runs.answer(runs.row("t0"), 0, WRONG))
    added = runs.line(runs.answer(runs.row("t1", line=2), 1))
    for changed, sentence in (([moved, *lines[1:]], "graded other outputs than"), ([*lines, added], "no verdict on")):
        path.write_bytes(b"".join(changed))
        done = command("compare", folder, other)
        assert done.exit_code == 2
        assert sentence in done.stderr
        assert not Path("runs").exists()


def test_a_grade_that_was_edited_fails_the_null_control(command, make):
    folder = make()
    command("grade", folder)
    path = folder / "grade" / "verdicts.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"correct"', b'"incorrect"', 1))
    done = command("compare", folder, folder, "--json")
    control = compared(done)["null_control"]
    assert (control["holds"], control["verdicts_moved"], control["difference"]) == (False, [["t0", 0]], 0.25)
    assert "Null control FAILED" in done.stderr


def test_runs_of_different_coverage_are_compared_where_both_have_cells(command, make):
    done = command("compare", make(), make({("t1", 1): None}), "--json")
    report = compared(done)
    assert (done.exit_code, report["verdict"]) == (1, "cells_differ")
    assert (report["score"]["basis"], report["cells"]) == ("common", {"common": 3, "only_a": 1, "only_b": 0})


def test_moved_logprob_bits_alone_end_with_0_and_are_said(command, make):
    a, b = (make(token_ids=(1, 2), logprob_bits_digest=bits * 64) for bits in "ab")
    done = command("compare", a, b, "--json")
    assert (done.exit_code, compared(done)["verdict"]) == (0, "logprobs_moved")
    assert "logprob bits moved" in done.stderr


def test_hostile_texts_are_shown_and_do_nothing(command, make):
    hostile = "</script><img src=x>\u202e\x1b]0;t\x07\x00\u2028[red]"
    done = command("compare", make({("t0", 0): f"{hostile} 1"}), make({("t0", 0): f"{hostile} 2"}), "--json")
    assert done.exit_code == 1
    assert not set(done.stderr) & set("\u202e\x1b\x07\x00\u2028")
    assert "</script><img src=x>\\u202e\\x1b]0;t\\x07\\x00\\u2028[red] 2" in done.stderr
    assert "<img" not in Path("runs/compare-0001/compare.html").read_text()


def test_the_order_of_records_changes_no_byte_of_a_comparison(command, make):
    a, b = make({("t0", 1): WRONG}), make()
    kept = []
    for _ in range(2):
        command("compare", a, b, "--out", "here")
        kept.append({name: Path("here", name).read_bytes() for name in ("compare.json", "compare.html")})
        shutil.rmtree("here")
        for folder in (a, b):
            path = folder / "generations.jsonl"
            path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[::-1]))
    assert kept[0] == kept[1]


def test_a_folder_that_holds_something_is_left_alone(command, make, tmp_path):
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "thesis.tex").write_text("mine")
    done = command("compare", make(), make(), "--out", tmp_path / "kept")
    assert done.exit_code == 2
    assert "not empty" in done.stderr
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
    "damage",
    [
        {"rules": None},
        {"rules": {"mode": 5, "think_tags": []}},
        {"rules": {"mode": "strict", "think_tags": "think"}},
        {"rules": {"mode": "strict", "think_tags": ["think", {}]}},
        {"max_tokens_budget": "many"},
    ],
)
def test_a_grade_of_another_version_is_refused(command, make, damage):
    folder = make()
    command("grade", folder)
    path = folder / "grade" / "report.json"
    report = parse_json(path.read_bytes())
    report["grader_fingerprint"].update(damage)
    path.write_bytes(canonical_bytes(report))
    done = command("compare", folder, folder)
    assert done.exit_code == 2
    assert "another version" in done.stderr


def hle_run(runs, name="hle"):
    rows = [runs.row(f"h{number}", "42", extra={"answer_type": "exactMatch"}) for number in range(2)]
    texts = [f"Explanation: {row.task_id}\nExact Answer: about {row.task_id}\nConfidence: 90%" for row in rows]
    answers = [runs.answer(row, 0, text, task="hle") for row, text in zip(rows, texts, strict=True)]
    folder = runs.write(rows, answers, task="hle", answer_kind="hle", name=name)
    judge = JudgeIdentity("m", PARAMS, OWN_TEMPLATE.id, OWN_TEMPLATE.digest)
    lines = [
        canonical_bytes(
            cache_row(
                judge,
                JudgeKey(judge.digest, row.row_digest, sha256_bytes(text.encode()), 0),
                CachedReply(f"correct: {word}", "stop"),
            )
        )
        for row, text, word in zip(rows, texts, ("yes", "no"), strict=True)
    ]
    return folder, b"\n".join([*lines, b""])


def test_a_judge_is_replayed_for_the_null_control_where_its_replies_are_kept(command, runs, tmp_path):
    folder, replies = hle_run(runs)
    (tmp_path / "judge.jsonl").write_bytes(replies)
    assert command("grade", folder, "--judge-cache", tmp_path / "judge.jsonl").exit_code == 0
    without = compared(command("compare", folder, folder, "--json"))["null_control"]
    assert (without["holds"], without["reason"]) == (
        None,
        "the judge's replies are not in judge.jsonl beside the grade",
    )
    shutil.copy(tmp_path / "judge.jsonl", folder / "grade")
    report = compared(command("compare", folder, folder, "--json"))
    assert (report["null_control"]["holds"], report["null_control"]["cells"]) == (True, 2)
    assert report["score"]["pass_at_1"]["a"]["exact"] == "1/2"
