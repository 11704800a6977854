"""``detharness probe`` in this process on the toy: streams, exit codes, the default folder."""

from __future__ import annotations

import json
import os
import signal

import pytest
from typer.testing import CliRunner

from detharness.errors import CapacityError
from detharness.records.canonical import read_json
from detharness.records.jsonl import read_jsonl


@pytest.fixture
def invoke(monkeypatch, tmp_path, two_cores):
    """Run the command against a target, in an empty folder that holds two prompts."""
    from detharness.cli import _app

    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.txt").write_text("a first prompt that is longer than a page\nand a second one of another length\n")

    def run(target, *arguments):
        def resolve(text, kernels, dtype, *, strict):
            return target.with_kernels(kernels, dtype)

        monkeypatch.setattr("detharness.targets.resolve.resolve_target", resolve)
        return CliRunner().invoke(_app, ["probe", "--prompts", "p.txt", "--dtype", "fp32", *arguments])

    return run


def test_json_is_the_last_and_only_line_of_stdout(invoke, mini_target, tmp_path):
    done = invoke(mini_target(), "--json")
    assert done.exit_code == 0
    assert done.stdout.count("\n") == 1
    report = json.loads(done.stdout)
    assert report.pop("exit_code") == 0
    assert report == read_json(tmp_path / "runs" / "probe-0001" / "report.json")
    assert "Axes: moved trials of all trials" in done.stderr


def test_tables_stay_off_stdout_in_a_pipe(invoke, mini_target):
    done = invoke(mini_target())
    assert done.stdout == ""
    assert "unique completions" in done.stderr


def test_a_new_run_never_takes_an_old_folder(invoke, mini_target, tmp_path):
    invoke(mini_target())
    invoke(mini_target())
    assert sorted(folder.name for folder in (tmp_path / "runs").iterdir()) == ["probe-0001", "probe-0002"]


@pytest.mark.parametrize(("faulty", "code"), [(("torch",), 0), (("torch", "invariant"), 1)])
def test_only_the_subject_fails_the_command(invoke, mini_target, faulty, code):
    assert invoke(mini_target(fault="rows counted", faulty=faulty)).exit_code == code


def test_interrupted_is_130_with_a_report(invoke, mini_target, tmp_path):
    target = mini_target(on_play=lambda number: os.kill(os.getpid(), signal.SIGINT) if number == 2 else None)
    done = invoke(target, "--json")
    assert done.exit_code == 130
    assert json.loads(done.stdout)["exit_code"] == 130
    assert "Ctrl-C again stops at once" in done.stderr
    assert read_json(tmp_path / "runs" / "probe-0001" / "report.json")["complete"] is False


def test_interrupted_twice_is_130_at_once(invoke, mini_target):
    def twice(number):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    done = invoke(mini_target(on_play=twice), "--json")
    assert (done.exit_code, done.stdout) == (130, "")
    assert "Interrupted." in done.stderr


def test_an_interrupted_command_is_deaf_to_one_more_ctrl_c(invoke, mini_target):
    def thrice(number):
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGINT)

    assert invoke(mini_target(on_play=thrice)).exit_code == 130


def test_a_failure_before_the_first_comparison_leaves_nothing(invoke, mini_target, tmp_path):
    def fail(number):
        raise CapacityError("the pool is full")

    done = invoke(mini_target(on_play=fail), "--out", "new")
    assert (done.exit_code, done.stderr) == (2, "Error: the pool is full\n")
    assert not (tmp_path / "new").exists()


def test_a_failure_after_it_keeps_the_records(invoke, mini_target, tmp_path):
    def fail(number):
        if number == 5:
            raise CapacityError("the pool is full")

    assert invoke(mini_target(on_play=fail), "--out", "new").exit_code == 2
    assert any(row.value["kind"] == "trial" for row in read_jsonl(tmp_path / "new" / "trials.jsonl"))
    assert not (tmp_path / "new" / "report.json").exists()


def test_names_that_are_no_utf8_are_escaped_in_the_manifest(invoke, mini_target, tmp_path):
    name = os.fsdecode(b"s\xff.jsonl")
    (tmp_path / name).write_text('{"probe": "line-1"}\n')
    assert invoke(mini_target(), "--traffic", name, "--out", "new").exit_code in (0, 1)
    assert read_json(tmp_path / "new" / "manifest.json")["effective_config"]["traffic"] == r"s\xff.jsonl"
