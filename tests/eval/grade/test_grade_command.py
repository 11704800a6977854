"""``detharness eval grade`` as a person meets it: exit codes, digests, hostile texts, and what survives a kill."""

import errno
import json
import re
import signal
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from detharness.cli.evaluation import evaluation
from detharness.eval.grade.stored import read_grade
from detharness.eval.records import TaskRow
from detharness.eval.runs import open_run
from detharness.records.canonical import parse_json
from detharness.records.digests import sha256_file

RIGHT, WRONG = "The answer is \\boxed{33}.", "The answer is \\boxed{12}."


def run(name, *arguments):
    done = CliRunner().invoke(evaluation, [name, *map(str, arguments)])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


@pytest.fixture
def folder(runs):
    rows = [runs.row(f"t{number}", line=number + 1) for number in range(2)]
    answers = [runs.answer(row, sample, f"{row.task_id} {sample} {RIGHT}") for row in rows for sample in range(2)]
    return runs.write(rows, answers, samples=2, answer_kind="integer")


def files_of(grade):
    """Its files, but for the clock's and what a killed grader had staged."""
    return {path.name: path.read_bytes() for path in grade.iterdir() if path.name not in ("timing.json", ".staged")}


def test_a_complete_run_ends_with_0_and_its_report_is_the_last_line(folder):
    done = run("grade", folder, "--json")
    last = json.loads(done.stdout.splitlines()[-1])
    assert (done.exit_code, last["exit_code"], last["pass_at_1"]) == (0, 0, 1.0)
    assert {**parse_json((folder / "grade" / "report.json").read_bytes()), "exit_code": 0} == last


def test_the_digest_is_printed_before_and_after_and_the_file_is_untouched(folder):
    before = sha256_file(folder / "generations.jsonl")
    done = run("grade", folder)
    for when in ("before", "after"):
        assert f"generations.jsonl {when}: sha256 {before}" in done.stderr
    assert sha256_file(folder / "generations.jsonl") == before


def test_an_interrupted_run_ends_with_1_and_says_between_what_the_score_lies(folder):
    path = folder / "generations.jsonl"
    path.write_bytes(path.read_bytes()[:-200])  # As a kill leaves it: two of four cells, and half a line.
    done = run("grade", folder, "--json")
    last = json.loads(done.stdout.splitlines()[-1])
    assert (done.exit_code, last["pass_at_1"], last["coverage_complete"]) == (1, None, False)
    assert (last["coverage"]["missing"], last["counts"]["torn_lines"]) == (1, 1)
    assert "It lies between 0.7500 (all of them wrong) and 1.0000 (all of them right)." in done.stderr
    assert "Warning: generations.jsonl, line 4 is torn" in done.stderr


def test_all_samples_are_used(runs):
    row = runs.row()
    answers = [runs.answer(row, sample, f"{sample} {RIGHT if sample < 8 else WRONG}") for sample in range(32)]
    done = run("grade", runs.write([row], answers, samples=32, answer_kind="integer"), "--at", "1,32", "--json")
    last = json.loads(done.stdout.splitlines()[-1])
    assert (last["n_used"], last["pass_at_1"]) == ({"min": 32, "max": 32}, 0.25)
    assert [row["k"] for row in last["pass_at_k"]] == [1, 32]


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda path: None, "is no run: it holds no manifest.json"),
        (lambda path: (path / "manifest.json").write_text("{}"), "is not of eval generate"),
        (lambda path: (path / "manifest.json").write_text("[1]"), "must hold a JSON object"),
        (lambda path: (path / "manifest.json").write_text('{"task": "aime2026"'), "not valid JSON"),
        (lambda path: (path / "manifest.json").write_text('{"task": "x", "samples": 1}'), "cannot read"),
    ],
)
def test_a_folder_that_is_no_run_ends_with_2_in_one_sentence(tmp_path, make, sentence):
    make(tmp_path)
    for name in ("grade", "verify"):
        done = run(name, tmp_path)
        assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
        assert sentence in done.stderr
    assert not (tmp_path / "grade").exists()


def test_a_run_of_an_unknown_kind_of_answer_is_refused(runs):
    done = run("grade", runs.write([runs.row()], [runs.answer(runs.row())], answer_kind="essay"))
    assert done.exit_code == 2
    assert "'answer_kind' is no kind it writes" in done.stderr


@pytest.mark.parametrize(
    ("kind", "gold", "options"),
    [
        *(("integer", gold, None) for gold in ("", "x", "-1", "1000", "\u0663", "9" * 5000)),
        *(("letter", gold, ("w", "x", "y", "z")) for gold in ("", "E", "a", "AB")),
        ("letter", "A", None),
    ],
)
def test_a_gold_answer_that_cannot_be_one_is_refused_by_its_row(runs, kind, gold, options):
    rows = [
        runs.row("t0", "7" if kind == "integer" else "A", options=("w", "x")),
        runs.row("t1", gold, options=options),
    ]
    done = run("grade", runs.write(rows, [], answer_kind=kind))
    assert done.exit_code == 2
    assert f"tasks.jsonl, row 2: the gold answer {gold!r:.60} is no {kind}" in done.stderr


def test_a_cell_beyond_the_run_is_extra_however_far_beyond(runs):
    row = runs.row()
    far = [runs.answer(row, sample) for sample in (1, 2**62)]
    last = json.loads(
        run("grade", runs.write([row], [runs.answer(row), *far], answer_kind="integer"), "--json").stdout.splitlines()[
            -1
        ]
    )
    assert (last["counts"]["extra"], last["extra"]) == (2, [["t0", 1], ["t0", 2**62]])
    assert (last["exit_code"], last["coverage"]["expected"]) == (0, 1)
    beyond = json.dumps({**runs.answer(row).as_row(), "sample_index": 2**64}).encode()
    done = run("grade", runs.write([row], [beyond], answer_kind="integer", name="beyond"))
    assert done.exit_code == 2
    assert "line 1: the field 'sample_index' must be a whole number" in done.stderr


HOSTILE = "</script><img src=x onerror=alert(1)>\u202e\u2066\x1b[31m\x1b]0;t\x07\x00\x85\u2028&lt;[red]"


def test_hostile_texts_are_shown_and_do_nothing(runs):
    row = TaskRow(**{**vars(runs.row(HOSTILE, question=HOSTILE)), "gold": "33"})
    answers = [
        runs.answer(row, 0, f"{HOSTILE} {RIGHT}", reasoning=HOSTILE, finish_reason=HOSTILE),
        runs.answer(row, 1, f"{WRONG} {HOSTILE}"),
        runs.failure(row, 2, kind=HOSTILE),
    ]
    stranger = runs.answer(runs.row(f"stranger {HOSTILE}"))
    made = runs.write([row], [*answers, stranger], samples=3, answer_kind="integer")
    for done in (run("grade", made), run("verify", made), run("verify", made, "--show", f"{HOSTILE}:0")):
        shown = done.stdout + done.stderr
        assert not set(shown) & set("\u202e\u2066\x1b\x07\x00\x85\u2028")
        assert "Traceback" not in shown
    page = (made / "grade" / "report.html").read_text()
    assert not set(page) & set("\u202e\u2066\x1b\x07\x00\x85\u2028")
    assert "<img" not in page
    assert len(re.findall("<script", page)) == len(re.findall("</script", page)) == 2
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page)
    assert json.loads(data)["rows"][0]["cells"][0]["panes"][0]["before"].startswith("</script><img")
    assert parse_json((made / "grade" / "report.json").read_bytes())["extra"] == [[f"stranger {HOSTILE}", 0]]


def test_a_lone_surrogate_is_no_text_and_its_line_is_named(runs):
    row = runs.row()
    line = json.dumps({**runs.answer(row).as_row(), "output_digest": "x"}).replace("boxed{33}", "\\ud800")
    done = run("grade", runs.write([row], [line.encode()], answer_kind="integer"))
    assert done.exit_code == 1
    assert "generations.jsonl, line 1 is torn: not valid JSON" in done.stderr


def test_a_disk_that_refuses_leaves_the_earlier_grade_as_it_was(folder, runs, monkeypatch):
    run("grade", folder)
    kept = files_of(folder / "grade")
    with (folder / "generations.jsonl").open("ab") as file:
        file.write(runs.line(runs.failure(runs.row())))

    def refuse(path, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("detharness.eval.grade.folder.write_atomic", refuse)
    done = run("grade", folder)
    assert done.exit_code == 2
    assert "cannot write the grade into" in done.stderr
    assert "No space left on device" in done.stderr
    assert files_of(folder / "grade") == kept
    assert not (folder / "grade" / ".staged").exists()


KILLED = """
import os, signal, sys
from pathlib import Path
from typer.testing import CliRunner
from detharness.cli.evaluation import evaluation

calls = 0

def last_call(original):
    def counted(*arguments):
        global calls
        calls += 1
        if calls == int(sys.argv[3]):
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*arguments)
    return counted

import detharness.eval.grade.folder as folder
folder.write_atomic = last_call(folder.write_atomic)
Path.replace = last_call(Path.replace)
CliRunner().invoke(evaluation, ["grade", sys.argv[1], "--mode", sys.argv[2], "--out", sys.argv[1] + "/grade"])
"""


@pytest.mark.parametrize("at", [1, 3, 8, 9, 10, 12])
def test_kill_9_never_leaves_a_report_beside_another_grade(folder, at):
    """Killed at the n-th file that is written or renamed, while a lenient grade takes the place of a strict one."""
    run("grade", folder)
    first = files_of(folder / "grade")
    before = sha256_file(folder / "generations.jsonl")
    done = subprocess.run([sys.executable, "-c", KILLED, folder, "lenient", str(at)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert sha256_file(folder / "generations.jsonl") == before
    if (folder / "grade" / "report.json").exists():
        assert files_of(folder / "grade") == first
    assert run("verify", folder).exit_code == 0
    run("grade", folder)
    assert files_of(folder / "grade") == first
    assert read_grade(folder / "grade").complete
    assert open_run(folder).samples == 2


JUDGED = """
import os, signal, sys
from typer.testing import CliRunner
from detharness.cli.evaluation import evaluation
from detharness.targets.generation import Reply

class Judge:
    def __init__(self, url, model):
        self.left = int(sys.argv[2])

    async def generate(self, request):
        if not self.left:
            os.kill(os.getpid(), signal.SIGKILL)
        self.left -= 1
        return Reply(text="correct: yes", finish_reason="stop")

    async def close(self):
        pass

import detharness.targets.endpoint.openai_endpoint as endpoint
endpoint.OpenAIEndpoint = Judge
options = ("--judge", "http://127.0.0.1:1/v1", "--judge-model", "m", "--judge-concurrency", "1", "--json")
done = CliRunner().invoke(evaluation, ["grade", sys.argv[1], *options])
sys.exit(done.exit_code)
"""


def test_kill_9_while_a_judge_is_asked_loses_none_of_its_replies(runs):
    rows = [runs.row(f"h{number}", "42", extra={"answer_type": "exactMatch"}) for number in range(5)]
    answers = [runs.answer(row, 0, f"Exact Answer: {row.task_id}", task="hle") for row in rows]
    made = runs.write(rows, answers, task="hle", answer_kind="hle")
    replies = made / "grade" / "judge.jsonl"
    for asked, end, kept in ((3, -signal.SIGKILL, 3), (2, 0, 5)):  # The second is asked the two that are left, alone.
        done = subprocess.run([sys.executable, "-c", JUDGED, made, str(asked)], check=False)
        assert (done.returncode, len(replies.read_bytes().splitlines())) == (end, kept)
    assert parse_json((made / "grade" / "report.json").read_bytes())["pass_at_1"] == 1.0


@pytest.mark.parametrize("command", ["grade", "verify", "compare"])
def test_no_torch_is_loaded(folder, command):
    script = (
        "import sys\nfrom detharness.cli import main\n"
        "sys.argv = ['detharness', 'eval', *sys.argv[1:]]\n"
        "try:\n    main()\nfinally:\n    print([name for name in ('torch', 'transformers') if name in sys.modules])"
    )
    runs = [folder, folder, "--out", folder / "compared"] if command == "compare" else [folder]
    done = subprocess.run(
        [sys.executable, "-c", script, command, *map(str, runs)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "[]"), done.stderr
