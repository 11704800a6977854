"""``detharness eval``: from the first request to the comparison, as a person types it."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from detharness.cli import _app

ASKED = ("--task", "arithmetic-mini", "--limit", "3", "--samples", "2", "--max-tokens", "12")


def detharness(*arguments):
    return CliRunner().invoke(_app, ["eval", *map(str, arguments)])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("evaluation")


@pytest.fixture(scope="module")
def runs(folder):
    """Two runs of the same requests at other concurrency, the first of them graded."""
    for name, concurrency in (("a", 2), ("b", 5)):
        ended = detharness("generate", *ASKED, "--out", folder / name, "--concurrency", concurrency, "--json")
        assert ended.exit_code == 0, ended.stderr
        summary = json.loads(ended.stdout.splitlines()[-1])
        assert summary["done"] == summary["expected"] == {"text": 6}
        assert "6 of 6 cells have an output; 0 were given up" in ended.stderr
        assert "published are 20 text" in ended.stderr
    return folder / "a", folder / "b"


@pytest.fixture(scope="module")
def graded(runs):
    ended = detharness("grade", runs[0], "--json")
    assert ended.exit_code == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


def test_a_whole_run_has_a_score_and_says_that_it_is_a_subset(graded, runs):
    assert graded["coverage_complete"]
    assert 0 <= graded["pass_at_1"] <= 1
    assert graded["matches_published"] is False
    assert (runs[0] / "grade" / "report.html").exists()


def test_the_same_command_again_asks_nothing(runs):
    before = (runs[0] / "generations.jsonl").read_bytes()
    ended = detharness("generate", *ASKED, "--out", runs[0], "--json")
    assert ended.exit_code == 0
    assert json.loads(ended.stdout.splitlines()[-1])["asked"] == 0
    assert (runs[0] / "generations.jsonl").read_bytes() == before


def test_other_requests_in_the_same_folder_are_refused_by_name(runs):
    ended = detharness("generate", *ASKED, "--out", runs[0], "--temperature", "0.5")
    assert ended.exit_code == 2
    assert "sampling.temperature" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_verify_holds_and_regenerates_a_cell_to_the_same_tokens(graded, runs):
    ended = detharness("verify", runs[0], "--regenerate", "2", "--json")
    assert ended.exit_code == 0, ended.stderr
    report = json.loads(ended.stdout.splitlines()[-1])
    assert [cell["outcome"] for cell in report["regenerated"]] == ["identical", "identical"]


def test_verify_names_an_output_that_was_changed(graded, runs, folder):
    changed = folder / "changed"
    changed.mkdir()
    for name in ("manifest.json", "tasks.jsonl", "generations.jsonl"):
        (changed / name).write_bytes((runs[0] / name).read_bytes())
    lines = (changed / "generations.jsonl").read_text().splitlines()
    row = json.loads(lines[0])
    row["output"]["text"] += "!"
    (changed / "generations.jsonl").write_text("\n".join([json.dumps(row), *lines[1:]]) + "\n")
    ended = detharness("verify", changed, "--grade", runs[0] / "grade", "--json")
    assert ended.exit_code == 1
    assert row["task_id"] in ended.stdout


def test_compare_says_that_concurrency_moved_nothing(graded, runs, folder):
    ended = detharness("compare", *runs, "--out", folder / "compared", "--json")
    assert ended.exit_code == 0, ended.stderr
    assert json.loads(ended.stdout.splitlines()[-1])["verdict"] == "same"
    assert (folder / "compared" / "compare.html").exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("generate", "--task", "aime2027"), "unknown task 'aime2027'"),
        (("generate", "--task", "aime2026"), "--data"),
        (("generate", "--task", "arithmetic-mini", "--target", "vllm"), "cannot ask 'vllm'"),
        (("generate", "--task", "arithmetic-mini", "--target", "http://127.0.0.1:9/v1"), "--model"),
        (("generate", "--task", "arithmetic-mini", "--max-tokens", "9000000"), "--max-tokens"),
        (("grade", "nowhere"), "is no run"),
        (("verify", "nowhere"), "is no run"),
        (("compare", "nowhere", "nowhere"), "is no run"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_2(arguments, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ended = detharness(*arguments)
    assert ended.exit_code == 2
    assert sentence in ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []
