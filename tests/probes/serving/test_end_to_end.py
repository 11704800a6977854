"""The whole command against servers over HTTP: what a person sees, whatever the server does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading

import pytest

from detharness.cli.probe_server import probe_server
from detharness.errors import UsageError
from detharness.probes.serving.report import build_report
from detharness.records.jsonl import read_jsonl

SMALL = {"model": "scripted", "trials": 1, "max_tokens": 12, "rate": 200.0, "concurrency": "2,3"}


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.jsonl"
    long = "Say what the harbour holds and who paid for it, and when. " * 7
    path.write_text(
        json.dumps({"id": "sea", "prompt": "Tell of the sea."}) + "\n" + json.dumps({"prompt": long}) + "\n"
    )
    return path


@pytest.fixture
def probe(tmp_path, prompts):
    """``probe(url, **options)``: exit code and report of a small probe."""

    def run(url, **options):
        out = options.setdefault("out", tmp_path / "run")
        code = probe_server(url, {**SMALL, "prompts": prompts, **options}, json=False)
        return code, json.loads((out / "report.json").read_bytes())

    return run


def statuses(report):
    return {name: axis["status"] for name, axis in report["axes"].items()}


STEP = 0.001  # Seconds of a step of the scripted engine: long enough for a burst to run together.


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_a_sound_server_is_found_sound(probe, open_scripted, api):
    server = open_scripted(prefix_cache=True, seconds_per_step=STEP)
    code, report = probe(server.url, api=api)
    assert statuses(report) == {"run_to_run": "identical", "co_batching": "identical", "prefix_cache": "identical"}
    assert (code, report["complete"]) == (0, True)
    assert {one["status"] for one in report["capabilities"]} == {"works"}
    assert server.engine.largest_batch > 2
    assert report["fingerprints"] == ["fp-scripted"]


@pytest.mark.parametrize(
    ("fault", "axis"), [({"cobatch_drift": 1e-2}, "co_batching"), ({"warm_drift": 1e-2}, "prefix_cache")]
)
def test_a_fault_is_found_where_it_is_and_ends_with_1(probe, open_scripted, fault, axis):
    server = open_scripted(prefix_cache=True, seconds_per_step=STEP, **fault)
    code, report = probe(server.url, trials=3)
    expected = dict.fromkeys(report["axes"], "identical") | {axis: "diverged"}
    assert (code, statuses(report)) == (1, expected)


def test_a_poor_server_is_probed_with_what_it_has(probe, open_scripted):
    """As some are: text alone, fields taken in silence, no counts, no cache that is told of, no tokenizer."""
    poor = {"ids": None, "logprobs": False, "usage": False, "cached_shown": None, "tokenize": None, "score": None}
    server = open_scripted(seconds_per_step=STEP, cobatch_drift=1e-2, fingerprint=None, **poor)
    code, report = probe(server.url, trials=3)
    assert code == 1
    assert report["axes"]["co_batching"]["status"] == "diverged"
    assert {row["method"] for row in report["arms"][0]["divergences"]} == {"bytes"}
    assert all(row["interval"][0] <= row["index"] <= row["interval"][1] for row in report["arms"][0]["divergences"])


def test_a_strict_server_that_refuses_unknown_fields_is_probed_without_them(probe, open_scripted):
    server = open_scripted(refuses=frozenset({"return_token_ids", "cache_salt"}), prefix_cache=True)
    _, report = probe(server.url)
    found = {one["name"]: one["status"] for one in report["capabilities"]}
    assert found["token ids"] != "works"
    assert found["cache salt"] == "absent"
    assert report["verdict"] == "identical"


@pytest.mark.parametrize(
    ("url", "options", "sentence"),
    [
        ("http://127.0.0.1:9/v1", {}, "connect"),
        ("{url}", {"model": "another"}, "does not exist"),
        ("{url}/nowhere", {}, "404"),
        ("https{rest}", {}, "secure"),
    ],
)
def test_what_can_be_mended_is_one_sentence_and_leaves_nothing(probe, open_scripted, tmp_path, url, options, sentence):
    server = open_scripted()
    with pytest.raises(UsageError, match=sentence) as raised:
        probe(url.format(url=server.url, rest=server.url.removeprefix("http")), **options)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("401", "401"),
        ("html", "not whole JSON|not a chat"),
        ("redirect", "a redirect to"),
        ("ten-megabytes", None),
        ("invalid-utf8", "JSON"),
        ("hangs-up", "connection"),
        ("cut-by-length", "connection"),
        ("429-soon", "429"),
    ],
)
def test_a_server_that_only_ever_misbehaves_is_a_sentence(probe, open_scripted, tmp_path, fault, sentence, monkeypatch):
    monkeypatch.setattr("detharness.probes.serving.asking._FIRST_WAIT", 0.001)
    server = open_scripted(fault=lambda number: fault)
    if sentence is None:  # Large, and right: a reply like any other.
        assert probe(server.url, max_requests=8, max_seconds=60)[0] in (0, 3)
        return
    with pytest.raises(UsageError, match=sentence) as raised:
        probe(server.url)
    assert "\n" not in str(raised.value)
    assert "\x1b" not in str(raised.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "fault",
    ["500", "html", "redirect", "invalid-utf8", "cut-by-length", "hangs-up", "says-much", "401", "escapes"],
)
def test_what_goes_wrong_in_the_middle_is_a_row_and_the_run_goes_on(probe, open_scripted, tmp_path, fault):
    server = open_scripted(fault=lambda number: fault if number > 30 and number % 7 == 0 else None)
    code, report = probe(server.url)
    assert (code, report["verdict"], report["complete"]) == (0, "identical", True)
    wrong = sum(number > 30 and number % 7 == 0 for number in range(server.generations))
    assert sum(error["count"] for error in report["errors"]) == wrong > 0
    rows = [row.value for row in read_jsonl(tmp_path / "run" / "replies.jsonl")]
    assert sum(row["kind"] == "error" for row in rows) == wrong
    messages = [row["message"] for row in rows if row["kind"] == "error"]
    assert all("\x1b" not in message and len(message) < 3100 for message in messages)  # 300 characters, all escaped.


def test_a_server_that_dies_in_the_middle_ends_the_run_with_3(probe, open_scripted):
    server = open_scripted(fault=lambda number: "hangs-up" if number >= 32 else None)
    code, report = probe(server.url, trials=3)
    assert (code, report["ended"], report["verdict"]) == (3, "server", "identical")
    assert any("stopped answering" in line for line in report["summary"])


def test_rate_limits_are_waited_for(probe, open_scripted):
    server = open_scripted(busy_first=3, busy_above=2)
    code, report = probe(server.url)
    assert (code, report["errors"]) == (0, [])
    assert server.turned_away > 3


@pytest.mark.parametrize("most", [18, 33])
def test_generations_never_exceed_the_budget(probe, open_scripted, most):
    server = open_scripted(cobatch_drift=1e-2)
    code, report = probe(server.url, max_requests=most)
    assert server.generations <= most
    assert report["ended"] == "requests"
    assert code in (0, 1, 3)


@pytest.mark.parametrize("shown", [float("nan"), None, "-0.5"])
def test_logprobs_that_are_no_numbers_are_not_used(probe, open_scripted, shown):
    server = open_scripted(logprob_shown=lambda value: shown)
    code, report = probe(server.url)
    found = {one["name"]: one["status"] for one in report["capabilities"]}
    assert found["logprobs"] in ("ignored", "absent")
    assert (code, report["verdict"]) == (0, "identical")


def test_hostile_replies_do_nothing_on_a_terminal(probe, open_scripted, capsys):
    server = open_scripted(hostile=True, cobatch_drift=1e-2, seconds_per_step=STEP)
    code, _ = probe(server.url, trials=3, max_tokens=48)
    shown = capsys.readouterr()
    assert code == 1
    assert "reference:" in shown.err
    for character in ("\x1b", "\x07", "\u202e"):
        assert character not in shown.err + shown.out


def test_neither_the_key_nor_a_headers_value_is_written_anywhere(probe, open_scripted, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("DETHARNESS_API_KEY", "sk-very-secret-key")
    server = open_scripted(key="sk-very-secret-key", fault=lambda number: "shows-the-key" if number > 30 else None)
    probe(server.url, header=["X-Team: hidden-team-name"], max_requests=60)
    seen = [{name.lower(): value for name, value in one["headers"].items()} for one in server.requests]
    assert {one["authorization"] for one in seen} == {"Bearer sk-very-secret-key"}
    assert {one["x-team"] for one in seen} == {"hidden-team-name"}
    shown = capsys.readouterr()
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    for secret in ("sk-very-secret-key", "hidden-team-name"):
        assert secret.encode() not in written
        assert secret not in shown.err + shown.out


def test_what_will_be_sent_is_shown_before_anything_is(open_scripted, capsys, prompts, tmp_path):
    with pytest.raises(UsageError):
        probe_server("http://127.0.0.1:9/v1", {**SMALL, "prompts": prompts, "out": tmp_path / "run"}, json=False)
    shown = capsys.readouterr().err
    assert "Requests" in shown
    assert "At most" in shown


def test_several_launches_are_read_together(open_scripted, tmp_path, prompts, capsys):
    sound = open_scripted(seconds_per_step=STEP)
    moved = open_scripted(seconds_per_step=STEP, cobatch_drift=1e-2)
    other = open_scripted(seconds_per_step=STEP, noise_drift=1e-2, noise_rate=1.0)
    rows = [
        {"name": "kernels", "url": moved.url, "changed": "attention kernels"},
        {"name": "noisy", "url": other.url, "changed": "all-reduce"},
        {"name": "gone", "url": "http://127.0.0.1:9/v1", "changed": "graphs"},
    ]
    (tmp_path / "launches.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = {
        **SMALL,
        "trials": 3,
        "prompts": prompts,
        "out": tmp_path / "run",
        "launches": tmp_path / "launches.jsonl",
    }
    assert probe_server(sound.url, options, json=False) == 1
    report = json.loads((tmp_path / "run" / "report.json").read_bytes())
    base, kernels, noisy, gone = report["launches"]
    assert (base["verdict"], base["changed"]) == ("identical", None)
    assert base["replies"] == {"compared": 2, "as_base": 2, "others": []}
    assert kernels["axes"]["co_batching"] == "diverged"
    assert kernels["replies"]["as_base"] == 2  # Alone it answers as the first one does.
    assert noisy["axes"]["run_to_run"] == "diverged"
    assert (gone["verdict"], gone["replies"]) == ("not_tested", None)
    assert "connect" in gone["error"]
    for name in ("base", "kernels", "noisy"):
        assert json.loads((tmp_path / "run" / name / "report.json").read_bytes())["kind"] == "server"
    nonces = {
        json.loads((tmp_path / "run" / name / "manifest.json").read_bytes())["effective_config"]["nonce"]
        for name in ("base", "kernels", "noisy")
    }
    assert len(nonces) == 1
    assert "attention kernels" in capsys.readouterr().err


def start(url, prompts, out, **options):
    arguments = [part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    return subprocess.Popen(
        [
            *(sys.executable, "-c", "from detharness.cli import main; main()", "probe", url),
            *("--model", "scripted", "--prompts", str(prompts), "--out", str(out), *arguments),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )


def signalled(open_scripted, prompts, out, number):
    """A run that gets ``number`` while its fortieth generation is in flight."""
    reached = threading.Event()

    def fault(count):
        if count == 40:
            reached.set()

    server = open_scripted(fault=fault, seconds_per_step=0.01)
    process = start(server.url, prompts, out, trials=3)
    try:
        assert reached.wait(60)
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    return process.returncode, stdout, stderr


def test_ctrl_c_drains_and_writes_a_report(open_scripted, prompts, tmp_path):
    code, _, stderr = signalled(open_scripted, prompts, tmp_path / "run", signal.SIGINT)
    assert (code, "Traceback" in stderr) == (130, False)
    report = json.loads((tmp_path / "run" / "report.json").read_bytes())
    assert (report["ended"], report["complete"], report["verdict"]) == ("interrupted", False, "identical")
    assert "Ctrl-C again" in stderr


def test_a_killed_run_can_be_loaded_and_reported(open_scripted, prompts, tmp_path):
    code, _, _ = signalled(open_scripted, prompts, tmp_path / "run", signal.SIGKILL)
    assert code == -signal.SIGKILL
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_bytes())
    rows = [row.value for row in read_jsonl(tmp_path / "run" / "trials.jsonl")]
    report = build_report(manifest, rows)
    assert (report["verdict"], report["complete"]) == ("identical", False)
    assert report["arms"][0]["statistics"]["trials"] > 0
