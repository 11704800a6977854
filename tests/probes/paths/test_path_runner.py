"""The probe of paths on a toy: each fault is found by its axis and level, a sound library by none."""

from __future__ import annotations

import json
import os
import signal
from contextlib import nullcontext

import pytest

from detharness.errors import UsageError
from detharness.probes.paths.arm_plan import arm_plays
from detharness.probes.paths.axes import PATH_AXES
from detharness.probes.paths.report import build_report
from detharness.probes.paths.runner import run
from detharness.probes.report import exit_code
from detharness.records.canonical import read_json
from detharness.records.jsonl import read_jsonl
from detharness.targets.paths import PathError

LEVELS = {
    "run_to_run": {"at_once", "at_the_end"},
    "padded_batch": {"pads=1", "pads=32", "copies=2", "copies=5", "longer", "ragged"},
    "continuous_batching": {"alone", "batch=4", "arrivals"},
}


def play(plan, on_interrupt=lambda: None):
    return run(plan, lambda total: nullcontext(lambda note: None), on_interrupt)


def rows_of(folder, kind="trial"):
    return [row.value for row in read_jsonl(folder / "trials.jsonl") if row.value["kind"] == kind]


def test_a_sound_library_moves_nowhere_and_every_axis_is_exercised(mini_paths, make_path_plan):
    outcome = play(make_path_plan(mini_paths(), dtype="fp32,bf16"))
    report = outcome.report
    assert (report["kind"], report["verdict"], report["complete"]) == ("transformers", "identical", True)
    assert [(arm["name"], arm["kernels"], arm["role"]) for arm in report["arms"]] == [
        ("transformers/fp32", None, "subject"),
        ("transformers/bf16", None, "subject"),
    ]
    for arm in report["arms"]:
        assert {name: set(axis["levels"]) for name, axis in arm["axes"].items()} == LEVELS
        assert {axis["status"] for axis in arm["axes"].values()} == {"identical"}
        assert arm["statistics"]["diverged"] == 0
        assert arm["backend"] == "toy 1"
    assert exit_code(report, interrupted=False) == 0
    assert "did not depend on how it was served" in report["summary"][-1]


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_each_fault_is_found_by_its_axis_and_level(mini_paths, make_path_plan, path_faults, tmp_path, dtype):
    for name, (axis, level, _) in path_faults.items():
        out = tmp_path / name.replace(" ", "-")
        report = play(make_path_plan(mini_paths(fault=name), dtype=dtype, out=out)).report
        found = report["arms"][0]["axes"][axis]
        assert (name, found["status"], report["verdict"]) == (name, "diverged", "diverged")
        assert found["levels"][level]["diverged"] == found["levels"][level]["trials"] > 0
        assert exit_code(report, interrupted=False) == 1
        if name not in ("noise", "state kept"):  # These move whatever is played later, on any axis.
            others = {other["status"] for key, other in report["arms"][0]["axes"].items() if key != axis}
            assert others == {"identical"}, name


@pytest.mark.parametrize(
    ("fault", "still"),
    [
        ("padding read", {"copies=2", "copies=5"}),
        ("wide padding read", {"pads=1", "copies=2", "copies=5"}),
        ("rows counted", {"pads=1", "pads=32"}),
        ("five rows", {"pads=1", "pads=32", "copies=2", "longer"}),
        ("another kernel", {"batch=4", "arrivals"}),
        ("company counted", {"alone"}),
        ("prompts beside", {"alone"}),
    ],
)
def test_levels_without_the_fault_stand_still(mini_paths, make_path_plan, path_faults, fault, still):
    report = play(make_path_plan(mini_paths(fault=fault))).report
    levels = report["arms"][0]["axes"][path_faults[fault][0]]["levels"]
    assert {level for level, found in levels.items() if not found["diverged"]} >= still


def test_the_counters_say_what_really_formed(mini_paths, make_path_plan):
    axes = play(make_path_plan(mini_paths())).report["axes"]
    assert axes["run_to_run"]["exercised"] == {"repetitions": 2}
    padded = axes["padded_batch"]["exercised"]
    assert padded["rows"] == [1, 2, 5]
    assert {0, 1, 32} <= set(padded["pad_widths"])
    assert axes["continuous_batching"]["exercised"]["requests_per_pass"] == [1, 2, 3, 4]


def test_batches_that_do_not_form_prove_nothing(mini_paths, make_path_plan):
    report = play(make_path_plan(mini_paths(forming=False), axes="padded_batch")).report
    assert report["axes"]["padded_batch"]["status"] == "not_tested"
    assert report["axes"]["padded_batch"]["reason"] == "not exercised"
    assert report["axes"]["run_to_run"]["reason"] == "left out"
    assert exit_code(report, interrupted=False) == 3


def test_company_that_does_not_form_leaves_only_the_levels_without_it(mini_paths, make_path_plan):
    report = play(make_path_plan(mini_paths(forming=False), axes="continuous_batching")).report
    assert set(report["arms"][0]["axes"]["continuous_batching"]["levels"]) == {"alone"}


def test_named_axes_play_every_prompt_and_the_default_the_shortest(mini_paths, make_path_plan, tmp_path):
    for axes, prompts in ((None, {"short"}), ("padded_batch", {"short", "long", "middle"})):
        folder = play(make_path_plan(mini_paths(), axes=axes, out=tmp_path / str(axes))).folder
        assert {row["prompt"] for row in rows_of(folder) if row["level"] == "pads=1"} == prompts
        assert {row["prompt"] for row in rows_of(folder) if row["level"] == "ragged"} == {"short", "long", "middle"}


def test_more_trials_draw_other_neighbours_and_repeat_only_what_chance_could_move(mini_paths, make_path_plan):
    rows = rows_of(play(make_path_plan(mini_paths(), trials=3)).folder)
    count = {level: sum(row["level"] == level for row in rows) for levels in LEVELS.values() for level in levels}
    assert count["pads=1"] == count["copies=5"] == 1
    assert count["at_once"] == count["at_the_end"] == count["longer"] == 3
    assert count["ragged"] == count["batch=4"] == count["arrivals"] == 9
    assert rows[-1]["level"] == "at_the_end"


REASON = "continuous batching does not run under toy 1"


def test_a_path_that_cannot_run_is_not_tested_and_says_why(mini_paths, make_path_plan):
    outcome = play(make_path_plan(mini_paths(broken=REASON)))
    axis = outcome.report["axes"]["continuous_batching"]
    assert (axis["status"], axis["reason"], axis["trials"]) == ("not_tested", REASON, 0)
    assert outcome.report["verdict"] == "identical"
    assert exit_code(outcome.report, interrupted=False) == 0
    assert f"continuous_batching was not tested in fp32: {REASON}." in outcome.report["not_shown"]
    assert len(rows_of(outcome.folder, "unavailable")) == 1


def test_a_path_that_was_asked_for_by_name_and_cannot_run_is_exit_3(mini_paths, make_path_plan):
    report = play(make_path_plan(mini_paths(broken=REASON), axes="all")).report
    assert exit_code(report, interrupted=False) == 3


def test_a_path_that_ends_early_is_not_called_identical(mini_paths, make_path_plan, tmp_path):
    report = play(make_path_plan(mini_paths(broken=REASON, broken_from=4))).report
    axis = report["arms"][0]["axes"]["continuous_batching"]
    assert (axis["status"], axis["reason"], axis["trials"]) == ("not_tested", REASON, 3)
    moved = mini_paths(broken=REASON, broken_from=4, fault="another kernel")
    assert play(make_path_plan(moved, out=tmp_path / "moved")).report["verdict"] == "diverged"


def test_without_the_plain_replies_there_is_no_run(mini_paths, make_path_plan, tmp_path):
    def fail(number):
        raise PathError("generate does not run")

    with pytest.raises(PathError, match="generate does not run"):
        play(make_path_plan(mini_paths(on_play=fail)))
    assert not (tmp_path / "out").exists()


def test_the_report_is_what_the_records_say_byte_for_byte(mini_paths, make_path_plan, tmp_path):
    first = play(make_path_plan(mini_paths(fault="rows counted"), out=tmp_path / "one"))
    second = play(make_path_plan(mini_paths(fault="rows counted"), out=tmp_path / "two"))
    for name in ("report.json", "manifest.json", "trials.jsonl"):
        assert (first.folder / name).read_bytes() == (second.folder / name).read_bytes()
    rows = [row.value for row in read_jsonl(first.folder / "trials.jsonl")]
    again = build_report(read_json(first.folder / "manifest.json"), rows)
    assert again == read_json(first.folder / "report.json") == first.report
    assert str(tmp_path) not in (first.folder / "report.json").read_text()
    assert read_json(first.folder / "timing.json")["seconds"] > 0


def test_a_divergence_has_a_row_with_its_margin_and_both_continuations(mini_paths, make_path_plan):
    report = play(make_path_plan(mini_paths(fault="rows counted"))).report
    rows = [row for row in report["arms"][0]["divergences"] if row["level"] == "copies=2"]
    assert [(row["axis"], row["prompt"], row["method"]) for row in rows] == [("padded_batch", "short", "token ids")]
    assert rows[0]["margin"] > 0
    assert rows[0]["margin_rank"][1] > 12
    assert rows[0]["context"]["reference"] != rows[0]["context"]["other"]


def test_the_first_interrupt_ends_after_the_play_and_leaves_a_valid_report(mini_paths, make_path_plan):
    told = []
    target = mini_paths(on_play=lambda number: os.kill(os.getpid(), signal.SIGINT) if number == 6 else None)
    outcome = play(make_path_plan(target), lambda: told.append(True))
    assert told == [True]
    assert outcome.interrupted
    assert not outcome.report["complete"]
    assert exit_code(outcome.report, interrupted=True) == 130
    assert len(rows_of(outcome.folder)) == 3  # Three of the six plays were solo replies.
    assert read_json(outcome.folder / "report.json") == outcome.report


def test_the_second_interrupt_stops_at_once_and_keeps_the_records(mini_paths, make_path_plan, tmp_path):
    target = mini_paths(
        on_play=lambda number: [os.kill(os.getpid(), signal.SIGINT) for _ in range(2 if number == 6 else 0)]
    )
    with pytest.raises(KeyboardInterrupt):
        play(make_path_plan(target))
    assert len(rows_of(tmp_path / "out")) == 2
    assert not (tmp_path / "out" / "report.json").exists()


def test_replies_that_end_by_themselves_are_compared_to_their_end(mini_paths, make_path_plan, tmp_path):
    prompts = tmp_path / "ends.jsonl"
    prompts.write_text('{"id": "a", "prompt": "x", "ignore_eos": false, "max_tokens": 400}\n')
    outcome = play(make_path_plan(mini_paths(), prompts=prompts))
    assert {row["finish_reason"] for row in rows_of(outcome.folder)} == {"stop"}
    assert outcome.report["verdict"] == "identical"


def test_long_replies_are_compared_without_keeping_logits(mini_paths, make_path_plan, monkeypatch):
    monkeypatch.setattr("detharness.probes.paths.settings.LOGITS_BYTES", 2 * 5 * 12 * 101 * 4)
    report = play(make_path_plan(mini_paths(fault="another kernel"))).report
    assert not report["effective_config"]["logits_compared"]
    assert report["verdict"] == "diverged"
    assert any("tokens and chosen logprobs were compared, logits not" in line for line in report["not_shown"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"axes": "batch_size"}, "unknown axis 'batch_size' in --axes"),
        ({"dtype": "bf16w"}, "unknown dtype 'bf16w' in --dtype: a transformers target runs in fp32 or bf16"),
        ({"temperature": 0.7}, "--temperature must be 0, got 0.7: a transformers target is probed greedily"),
        ({"trials": 0}, "--trials must be at least 1"),
        ({"trials": 1001}, "--trials must be at most 1000"),
        ({"max_tokens": 1}, "--max-tokens must be at least 2"),
        ({"max_tokens": 0}, "--max-tokens must be at least 2"),
        ({"seed": -1}, "--seed must be at least 0"),
        ({"max_tokens": 900000}, "a reply of 900000 do not fit the model's context of 1000"),
    ],
)
def test_a_mistake_is_one_sentence_before_anything_is_written(mini_paths, make_path_plan, tmp_path, options, message):
    with pytest.raises(UsageError, match=message):
        make_path_plan(mini_paths(), **options)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("field", ['"temperature": 0.5', '"top_k": 3', '"seq_seed": 1', '"stop": ["x"]'])
def test_a_prompt_that_asks_for_a_sampler_is_refused_by_file_and_line(mini_paths, make_path_plan, tmp_path, field):
    prompts = tmp_path / "sampled.jsonl"
    prompts.write_text('{"prompt": "x", "temperature": 0.0}\n{"prompt": "x", ' + field + "}\n")
    name = field.split('"')[1]
    with pytest.raises(UsageError, match=rf"sampled\.jsonl, line 2: {name} cannot be asked here"):
        make_path_plan(mini_paths(), prompts=prompts)


def test_replies_whose_logits_would_not_fit_are_refused_with_the_length_that_does(
    mini_paths, make_path_plan, monkeypatch
):
    monkeypatch.setattr("detharness.probes.paths.settings.LOGITS_BYTES", 2 * 5 * 11 * 101 * 4)
    with pytest.raises(UsageError, match=r"replies of 12 tokens are too long here.*to 11"):
        make_path_plan(mini_paths())


def test_no_neighbour_outgrows_the_context(mini_paths, make_path_plan, tmp_path):
    prompts = tmp_path / "long.jsonl"
    prompts.write_text(json.dumps({"id": "full", "token_ids": [7] * 980, "max_tokens": 20}) + "\n")
    plan = make_path_plan(mini_paths(), prompts=prompts, axes="all", trials=3)
    for play in arm_plays(plan.bench, plan.axes, 3):
        assert all(len(r.token_ids) + r.max_tokens <= plan.target.context_length for r in play.requests), play.key
    assert run(plan, lambda total: nullcontext(lambda note: None), lambda: None).report["verdict"] == "identical"


def test_every_axis_is_in_every_report(mini_paths, make_path_plan):
    assert list(play(make_path_plan(mini_paths(), axes="run_to_run")).report["axes"]) == list(PATH_AXES)
