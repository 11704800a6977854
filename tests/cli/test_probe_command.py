"""The command line as a person meets it: a subprocess, its exit code, its streams."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from detharness import __version__


def detharness(*arguments, cwd=None):
    return subprocess.run(
        [sys.executable, "-c", "from detharness.cli import main; main()", *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        check=False,
    )


def test_help_names_the_command_and_is_quick():
    def timed():
        started = time.perf_counter()
        assert "probe" in detharness("--help").stdout
        return time.perf_counter() - started

    assert min(timed() for _ in range(5)) < 0.3  # The best of five: a busy machine slows single runs.


OPTIONS = (
    *("--prompts", "--traffic", "--axes", "--kernels", "--trials", "--max-tokens", "--dtype", "--temperature"),
    *("--seed", "--page-size", "--num-blocks", "--max-step-tokens", "--out", "--json", "--debug"),
)


def test_probe_help_lists_every_option_of_the_design():
    done = detharness("probe", "--help")
    assert done.returncode == 0
    for option in OPTIONS:
        assert option in done.stdout


def test_probe_help_names_every_axis_and_every_traffic():
    from detharness.probes.axes import AXES
    from detharness.probes.traffic.generators import GENERATORS

    text = " ".join(detharness("probe", "--help").stdout.split())
    for name in (*AXES, *GENERATORS):
        assert name in text


def test_version():
    assert detharness("--version").stdout == f"detharness {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--axes", "batchsize"], "unknown axis 'batchsize' in --axes"),
        (["--traffic", "none-such"], "unknown traffic 'none-such'"),
        (["--kernels", "fast"], "unknown kernels 'fast'"),
        (["--dtype", "int4"], "unknown dtype 'int4'"),
        (["--prompts", "missing.jsonl"], "cannot read missing.jsonl"),
        (["--prompts", "bad.jsonl"], "bad.jsonl, line 2: not valid JSON"),
        (["--prompts", "empty.jsonl"], "empty.jsonl, line 1: the prompt is empty"),
        (["--traffic", "bad-script.jsonl"], "bad-script.jsonl, line 1: no prompt has the id"),
        (["--prompts", "marked.txt"], "marked.txt, line 1: starts with a byte order mark"),
        (["--prompts", "pipe"], "pipe is a pipe or a device"),
        (["--prompts", "red\x1b[31m\n.txt"], r"cannot read red\x1b[31m\n.txt"),
        (["--traffic", "x" * 300], "unknown traffic"),
        (["--traffic", "late.jsonl"], "late.jsonl, line 1: step must be a whole number from 0 to 100000"),
        (["--out", "x" * 300], "File name too long"),
        (["--out", "loop"], "cannot write the output folder loop"),
        (["--out", "bad.jsonl/below"], "cannot write the output folder bad.jsonl/below"),
        (["--page-size", "100000"], "--page-size must be at most 1024"),
        (["--trials", "1" + "0" * 30], "--trials must be at most 1000"),
        (["--num-blocks", "1" + "0" * 30], "--num-blocks must be at most"),
        (["--max-step-tokens", "1" + "0" * 30], "--max-step-tokens must be at most"),
        (["--seed", "1" + "0" * 30], "--seed must be at most"),
        (["--temperature", "nan"], "--temperature: temperature must be a finite number"),
        (["--out", "used"], "--out used is not empty"),
        (["--out", "bad.jsonl"], "--out bad.jsonl is a file"),
        (["--trials", "0"], "--trials must be at least 1"),
        (["llama"], "a target is engine:MODEL"),
        (["ftp://host/v1"], "a target is engine:MODEL"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_2(tmp_path, arguments, message):
    (tmp_path / "bad.jsonl").write_text('{"prompt": "a"}\n{"prompt": \n')
    (tmp_path / "empty.jsonl").write_text('{"prompt": ""}\n')
    (tmp_path / "bad-script.jsonl").write_text('{"probe": "nobody"}\n')
    (tmp_path / "marked.txt").write_bytes(b"\xef\xbb\xbfhello")
    (tmp_path / "late.jsonl").write_text('{"prompt": "a", "step": 1000000000000}\n')
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "manifest.json").write_text("{}")
    done = detharness("probe", *arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert done.stderr.startswith("Error: ")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "runs").exists()
    assert sorted(path.name for path in (tmp_path / "used").iterdir()) == ["manifest.json"]


@pytest.mark.parametrize(
    "arguments", [["prob"], ["probe", "--axis", "slot"], ["probe", "--trials", "many"], ["probe", "a", "b"]]
)
def test_the_parser_refuses_with_exit_2_too(arguments):
    done = detharness(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr


def test_debug_shows_the_traceback_and_keeps_the_exit_code():
    done = detharness("probe", "--axes", "x", "--debug")
    assert done.returncode == 2
    assert "Traceback" in done.stderr
    assert "UsageError: unknown axis 'x'" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "m"], "--model belongs to a server (http://HOST/v1), and this is an engine target"),
        (["http://h/v1", "--model", "m", "--kernels", "torch"], "--kernels belongs to an engine target"),
        (["http://h/v1", "--model", "m", "--strict"], "--strict belongs to an engine target"),
        (["hf:m", "--page-size", "16"], "--page-size belongs to an engine target"),
    ],
)
def test_an_option_of_another_kind_of_target_is_refused_by_name(arguments, message):
    done = detharness("probe", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
