"""The runner end to end on the toy: records, the report as a pure function of them, Ctrl-C, and both arms."""

from __future__ import annotations

import os
import signal
from contextlib import nullcontext

import pytest

from detharness.errors import CapacityError, DetharnessError, UsageError
from detharness.probes.axes import AXES
from detharness.probes.report import build_report, exit_code
from detharness.probes.runner import run
from detharness.records.canonical import read_json
from detharness.records.jsonl import read_jsonl


def play(plan, on_interrupt=lambda: None):
    return run(plan, lambda total: nullcontext(lambda note: None), on_interrupt)


def rows_of(folder):
    return [row.value for row in read_jsonl(folder / "trials.jsonl")]


def test_both_arms_by_default_with_the_control_free_to_move(mini_target, make_plan):
    target = mini_target(fault="rows counted", faulty=("torch",))
    outcome = play(make_plan(target, dtype="fp32,bf16", max_tokens=40))
    report = outcome.report
    assert [(arm["kernels"], arm["dtype"], arm["role"], arm["verdict"]) for arm in report["arms"]] == [
        ("torch", "fp32", "control", "diverged"),
        ("invariant", "fp32", "subject", "identical"),
        ("torch", "bf16", "control", "diverged"),
        ("invariant", "bf16", "subject", "identical"),
    ]
    assert report["verdict"] == "identical"
    assert exit_code(report, interrupted=False) == 0
    assert all(report["axes"][axis]["status"] == "identical" for axis in AXES)
    assert "batch_sizes" in report["axes"]["batch_size"]["exercised"]
    assert 2 in report["axes"]["batch_size"]["exercised"]["batch_sizes"]
    fp32 = report["arms"][1]["axes"]
    assert {fp32[axis]["reason"] for axis in AXES if fp32[axis]["status"] == "not_tested"} == {"left out"}


def test_one_kernel_set_is_its_own_subject(mini_target, make_plan):
    outcome = play(make_plan(mini_target(fault="rows counted"), kernels="torch", axes="batch_size"))
    assert [arm["role"] for arm in outcome.report["arms"]] == ["subject"]
    assert exit_code(outcome.report, interrupted=False) == 1


def test_the_report_is_what_the_records_say_byte_for_byte(mini_target, make_plan, tmp_path):
    first = play(make_plan(mini_target(fault="slot read"), out=tmp_path / "one"))
    second = play(make_plan(mini_target(fault="slot read"), out=tmp_path / "two"))
    for name in ("report.json", "manifest.json", "trials.jsonl"):
        assert (first.folder / name).read_bytes() == (second.folder / name).read_bytes()
    again = build_report(read_json(first.folder / "manifest.json"), rows_of(first.folder))
    assert again == read_json(first.folder / "report.json") == first.report
    assert str(tmp_path) not in (first.folder / "report.json").read_text()
    timing = read_json(first.folder / "timing.json")
    assert timing["seconds"] > 0
    assert len(timing["plays"]) == len({(play["arm"], play["scenario"]) for play in timing["plays"]})


def test_a_record_holds_the_reply_its_reference_and_the_proof(mini_target, make_plan):
    rows = rows_of(play(make_plan(mini_target(), kernels="invariant", axes="batch_size")).folder)
    trial = next(row for row in rows if row["kind"] == "trial" and row["level"] == "size=3")
    assert trial["reference"] == [f"solo/{trial['prompt']}", trial["prompt"], 0]
    assert trial["exercised"] == {"batch_sizes": [3], "shared_steps": 36}
    assert len(trial["token_ids"]) == len(trial["logprob_bits"]) == 36
    assert trial["comparison"]["tokens"] == 36


def test_the_first_interrupt_ends_after_the_play_and_leaves_a_valid_report(mini_target, make_plan):
    told = []
    target = mini_target(on_play=lambda number: os.kill(os.getpid(), signal.SIGINT) if number == 4 else None)
    outcome = play(make_plan(target), lambda: told.append(True))
    assert told == [True]
    assert outcome.interrupted
    rows = rows_of(outcome.folder)
    timing = read_json(outcome.folder / "timing.json")["plays"]
    assert len(timing) == 4
    assert rows[-1]["scenario"] == timing[-1]["scenario"]
    report = read_json(outcome.folder / "report.json")
    assert report["complete"] is False
    assert [arm["complete"] for arm in report["arms"]] == [False, False]
    assert report["arms"][1]["verdict"] == "not_tested"
    assert exit_code(report, interrupted=True) == 130
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_second_interrupt_stops_at_once(mini_target, make_plan):
    def twice(number):
        if number == 3:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        play(make_plan(mini_target(on_play=twice)))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_axis_that_was_named_and_not_exercised_is_exit_3(mini_target, make_plan, monkeypatch):
    plan = make_plan(mini_target(), kernels="invariant", axes="threads,slot")
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0})  # The toy's solo run has two threads, so force one.
    monkeypatch.setattr("detharness.probes.axes.threads.Threads.scenarios", lambda self, bench, depth: [])
    report = play(plan).report
    assert report["axes"]["threads"] == {
        "status": "not_tested",
        "reason": "not exercised",
        "trials": 0,
        "diverged": 0,
        "diverged_tokens": 0,
        "exercised": {},
    }
    assert report["axes"]["slot"]["status"] == "identical"
    assert report["verdict"] == "identical"
    assert exit_code(report, interrupted=False) == 3


def test_a_host_with_one_core_does_not_fail_the_default_choice(mini_target, make_plan, monkeypatch):
    monkeypatch.setattr("detharness.probes.axes.threads.Threads.scenarios", lambda self, bench, depth: [])
    report = play(make_plan(mini_target(), dtype="bf16", kernels="invariant", max_tokens=40)).report
    assert report["axes"]["threads"]["status"] == "not_tested"
    assert exit_code(report, interrupted=False) == 0
    assert any("threads" in line and "not tested" in line for line in report["not_shown"])


def test_traffic_alone_compares_with_solo_and_leaves_the_axes_out(mini_target, make_plan):
    report = play(make_plan(mini_target(fault="rows counted"), kernels="invariant", traffic="burst", trials=3)).report
    arm = report["arms"][0]
    assert {found["reason"] for found in arm["axes"].values()} == {"left out"}
    assert arm["combined"]["levels"] == {"burst": {"trials": 6, "diverged": 6}}
    assert report["verdict"] == "diverged"


def test_a_script_is_played(mini_target, make_plan, tmp_path):
    script = tmp_path / "load.jsonl"
    script.write_text('{"step": 2, "prompt": "load", "max_tokens": 9}\n{"probe": "short"}\n')
    report = play(make_plan(mini_target(), kernels="invariant", traffic=str(script))).report
    assert report["arms"][0]["combined"]["levels"] == {"script": {"trials": 1, "diverged": 0}}
    assert report["effective_config"]["traffic"] == "load.jsonl"


def test_sampled_replies_hold_too(mini_target, make_plan):
    report = play(make_plan(mini_target(), kernels="invariant", axes="slot,preemption", temperature=0.9)).report
    assert report["verdict"] == "identical"


def test_more_trials_draw_other_neighbours_and_play_fixed_ones_once(mini_target, make_plan, tmp_path):
    one = play(make_plan(mini_target(), kernels="invariant", axes="content,batch_size", out=tmp_path / "one")).report
    two = play(
        make_plan(mini_target(), kernels="invariant", axes="content,batch_size", trials=2, out=tmp_path / "two")
    ).report
    assert two["axes"]["content"]["trials"] == 2 * one["axes"]["content"]["trials"]
    assert two["axes"]["batch_size"]["trials"] == one["axes"]["batch_size"]["trials"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"axes": "batch_size,bach"}, "unknown axis 'bach' in --axes"),
        ({"traffic": "brust"}, "unknown traffic 'brust'"),
        ({"kernels": "fast"}, "unknown kernels 'fast' in --kernels"),
        ({"dtype": "fp16"}, "unknown dtype 'fp16' in --dtype"),
        ({"trials": 0}, "--trials must be at least 1, got 0"),
        ({"max_tokens": 1}, "--max-tokens must be at least 2, got 1"),
        ({"temperature": -1.0}, "--temperature: temperature must be between 0 and 100"),
        ({"num_blocks": 3}, "prompt 'short' needs 5 KV pages of 16 tokens, and --num-blocks is 3"),
        ({"page_size": 0}, "--page-size must be at least 1"),
        ({"max_tokens": 990}, "do not fit the model's context of 1000"),
    ],
)
def test_what_cannot_be_asked_is_refused_before_anything_is_written(mini_target, make_plan, tmp_path, options, message):
    with pytest.raises(DetharnessError, match=message):
        make_plan(mini_target(), **options)
    assert not (tmp_path / "out").exists()


def test_a_pool_too_small_is_a_capacity_error(mini_target, make_plan):
    with pytest.raises(CapacityError):
        make_plan(mini_target(), num_blocks=1)


def test_a_used_output_folder_is_refused_before_the_model_is_opened(make_plan, tmp_path):
    class Closed:
        def with_kernels(self, kernels, dtype):
            raise AssertionError("the target was opened")

    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "report.json").write_text("{}")
    with pytest.raises(UsageError, match="is not empty"):
        make_plan(Closed())
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="is a file"):
        make_plan(Closed(), out=tmp_path / "file")
    with pytest.raises(UsageError, match="cannot write the output folder"):
        make_plan(Closed(), out=tmp_path / "file" / "below")
