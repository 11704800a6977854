"""The report is a function of manifest and rows: shape, sets of outputs, divergence rows, the study of many runs."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest
import scripted_model as model

from detharness.probes.serving.findings import LEVEL, axis_findings
from detharness.probes.serving.report import build_report
from detharness.probes.serving.tally import Group, PromptTally, Tally
from detharness.records.canonical import canonical_bytes
from detharness.records.jsonl import JsonlWriter, read_jsonl

WIDE = 1e-3


def manifest_of(outcome):
    return json.loads((outcome.folder / "manifest.json").read_bytes())


def rows_of(outcome):
    return [row.value for row in read_jsonl(outcome.folder / "trials.jsonl")]


def test_the_same_records_give_the_same_bytes(probe, fake_server):
    outcome = probe(fake_server(with_company=WIDE))
    again = build_report(manifest_of(outcome), rows_of(outcome))
    assert canonical_bytes(again) + b"\n" == (outcome.folder / "report.json").read_bytes()


def test_the_same_run_twice_gives_the_same_report(probe, fake_server):
    first, second = (probe(fake_server(with_company=WIDE)) for _ in range(2))
    assert canonical_bytes(first.report) == canonical_bytes(second.report)


def test_the_report_has_the_fields_that_others_rely_on(probe, fake_server):
    report = probe(fake_server(with_company=WIDE)).report
    assert report["kind"] == "server"
    top = "schema verdict complete summary not_shown arms axes effective_config environment target amplified"
    assert {*top.split(), "capabilities", "findings"} <= set(report)
    (arm,) = report["arms"]
    fields = "name kernels role backend dtype complete verdict prompts axes combined statistics divergences"
    assert set(fields.split()) <= set(arm)
    assert list(report["axes"]) == list(arm["axes"]) == ["run_to_run", "co_batching", "prefix_cache"]
    assert arm["divergences"]
    divergence = (
        "prompt axis level prompt_tokens index position method interval byte_offset margin margin_rank median_margin "
        "drift_median drift_max divergence_class forced context"
    )
    assert all(set(divergence.split()) <= set(row) for row in arm["divergences"])
    assert {"token", "at_risk", "diverged", "share"} <= set(arm["statistics"]["survival"][0])


def test_outputs_are_a_set_with_counts_and_a_minority_rate_with_its_bounds(probe, fake_server):
    outcome = probe(fake_server(with_company=WIDE), trials=3)
    for prompt in outcome.report["arms"][0]["prompts"]:
        counts = [one["count"] for one in prompt["completions"]]
        assert sum(counts) == prompt["trials"]
        assert len(counts) == prompt["unique_completions"]
        assert max(counts) == prompt["modal_count"]
        minority = prompt["minority"]
        assert minority["count"] + prompt["modal_count"] == minority["n"] == prompt["trials"]
        low, high = minority["interval_95"]
        assert low <= minority["rate"] <= high
        compared = [row for row in rows_of(outcome) if row["kind"] in ("reference", "trial")]
        replies = [row for row in compared if row["prompt"] == prompt["id"] and row["output"] is not None]
        assert prompt["trials"] == len(replies)
    assert max(prompt["unique_completions"] for prompt in outcome.report["arms"][0]["prompts"]) > 1
    assert not any("changed since" in line for line in outcome.report["summary"])


def test_every_divergence_has_its_margin_and_its_rank_among_all_of_the_run(probe, fake_server):
    outcome = probe(fake_server(with_company=WIDE), trials=3)
    margins = sorted(m for row in rows_of(outcome) if row["kind"] == "reference" for m in row["margins"])
    rows = outcome.report["arms"][0]["divergences"]
    for row in rows:
        rank, among = row["margin_rank"]
        assert among == len(margins) == 48
        assert margins[rank - 1] == row["margin"]
        assert row["median_margin"] == (margins[23] + margins[24]) / 2
        assert row["divergence_class"] == "near_tie"
        assert row["position"] == row["prompt_tokens"] + row["index"]
        assert row["drift_max"] is None or 0 < row["drift_median"] <= row["drift_max"] < 2 * WIDE
    assert max(row["margin_rank"][0] for row in rows) < 12  # Ties are near the bottom: one in eight is near.


def test_a_wide_margin_is_called_confident(probe, fake_server):
    rows = probe(fake_server(with_company=5.0)).report["arms"][0]["divergences"]
    assert any(row["divergence_class"] == "confident" for row in rows if row["index"] == 0)


@pytest.mark.parametrize(
    ("server", "tokenizer", "method"),
    [
        ({}, None, "token ids"),
        ({"ids": False}, None, "logprob entries"),
        ({"ids": False, "logprobs": False}, None, "server tokenizer"),
        (
            {"ids": False, "logprobs": False, "tokenizes": False},
            lambda text: tuple(model.encode(text)),
            "local tokenizer",
        ),
        ({"ids": False, "logprobs": False, "tokenizes": False}, None, "bytes"),
    ],
)
def test_the_position_comes_from_the_best_level_there_is_and_names_it(probe, fake_server, server, tokenizer, method):
    truth = probe(fake_server(with_company=WIDE)).report["arms"][0]["divergences"]
    report = probe(fake_server(with_company=WIDE, **server), tokenizer=tokenizer).report
    rows = report["arms"][0]["divergences"]
    first = {(row["prompt"], row["level"], row["context"]["other"]): row for row in truth if row["context"]["other"]}
    seen = 0
    for row in rows:
        same = first.get((row["prompt"], row["level"], row["context"]["other"]))
        if same is not None and row["method"] == method:
            low, high = row["interval"]
            assert low <= same["index"] <= high
            assert row["byte_offset"] == same["byte_offset"]
            seen += 1
    assert seen > 0


def test_both_continuations_are_scored_where_the_server_can(probe, fake_server):
    report = probe(fake_server(api="completions", with_company=WIDE)).report
    forced = [row["forced"] for row in report["arms"][0]["divergences"] if row["forced"] is not None]
    assert forced
    for sides in forced:
        reference, other = sides["reference"], sides["other"]
        assert reference["margin"] == other["margin"]  # The same place behind the same text.
        assert reference["margin"] < 2e-4
        assert reference["behind_best"] == 0.0 < other["behind_best"] == reference["margin"]


@pytest.mark.parametrize("server", [{"api": "chat"}, {"api": "completions", "scores": False}])
def test_nothing_is_scored_where_the_prompt_is_not_known_or_the_server_cannot(probe, fake_server, server):
    server = fake_server(with_company=WIDE, **server)
    rows = probe(server).report["arms"][0]["divergences"]
    assert rows
    assert {row["forced"] for row in rows} == {None}
    assert server.calls["score"] == 1  # The capability test alone.


def test_the_study_of_many_runs_is_one_setting(probe, fake_server):
    server = fake_server(with_company=WIDE, api="completions")
    outcome = probe(server, preset="feynman", prompts=None, max_requests=400, max_tokens=40, trials=3)
    report = outcome.report
    runs = report["preset"]
    asked = [one for one in server.asked if one.prompt == "Tell me about Richard Feynman"]
    assert {(one.temperature, one.max_tokens) for one in asked} == {(0.0, 40)}
    assert runs["runs"] == report["arms"][0]["prompts"][0]["trials"] == len(asked) - 1 > 250  # One warmed it up.
    assert runs["distinct"] > 1
    texts = {row["output"]: row["text"] for row in rows_of(outcome) if row.get("text") is not None}
    shared = runs["common_prefix_characters"]
    assert len({text[:shared] for text in texts.values()}) == 1
    assert len({text[: shared + 1] for text in texts.values()}) > 1
    firsts = [row["comparison"]["first_token"] for row in rows_of(outcome) if row["kind"] == "trial"]
    assert runs["common_prefix_tokens"] == min(first for first in firsts if first is not None)
    assert sum(one["count"] for one in runs["continuations"]) == runs["runs"]
    assert len(server.asked) + sum(server.calls.values()) == 400
    assert server.most_in_flight == 32


def test_a_thousand_runs_of_a_thousand_tokens_are_what_the_preset_plans(probe, fake_server):
    outcome = probe(fake_server(), preset="feynman", prompts=None, max_tokens=None, max_requests=19)
    plays = manifest_of(outcome)["plays"]
    assert [play["watched"] for play in plays] == [1, 3, 1000]
    assert manifest_of(outcome)["effective_config"]["max_tokens"] == 1000


def test_many_runs_that_agree_have_one_reply_and_no_continuations(probe, fake_server):
    runs = probe(fake_server(), preset="feynman", prompts=None, max_requests=100, max_tokens=8).report["preset"]
    assert (runs["distinct"], runs["continuations"], runs["common_prefix_tokens"]) == (1, [], None)
    assert runs["commonest"]["count"] == runs["runs"]


def test_a_difference_that_the_counts_cannot_tell_from_noise_is_not_blamed():
    tally = Tally({"a": PromptTally()})
    tally.groups["run_to_run", "solo", "alone", "a"] = Group(trials=3)
    tally.groups["co_batching", "loaded", "needle", "a"] = Group(trials=3, moved=1, moved_tokens=1)
    found = axis_findings("co_batching", tally, ("co_batching",))
    assert (found.axis["status"], found.axis["reason"]) == ("not_tested", "not told apart")
    assert found.finding["p_value"] > LEVEL / 2
    tally.groups["co_batching", "loaded", "needle", "a"] = Group(trials=9, moved=9, moved_tokens=9)
    assert axis_findings("co_batching", tally, ("co_batching",)).axis["status"] == "diverged"


def test_another_cache_state_is_not_blamed_on_company(probe, fake_server):
    # Salts that do nothing are not believed, so prompts are warm from the start; a cache that is flushed is not.
    server = fake_server(with_company=WIDE, salts=False)
    server.error = lambda number: server._pages.clear() if number > 34 else None
    outcome = probe(server, axes="co_batching")
    rows = [row for row in rows_of(outcome) if row["kind"] == "trial" and row["axis"] == "co_batching"]
    (reference,) = {
        row["cached_tokens"] for row in rows_of(outcome) if row["kind"] == "reference" and row["prompt"] == "two"
    }
    assert reference > 0
    axis = outcome.report["arms"][0]["axes"]["co_batching"]
    assert axis["confounded"] == sum(row["confounded"] for row in rows) > 0
    assert axis["trials"] == sum(not row["confounded"] for row in rows if row["exercised"])
    blamed = [row for row in outcome.report["arms"][0]["divergences"] if row["axis"] == "co_batching"]
    assert sum(row["count"] for row in blamed) == axis["diverged_tokens"]


def test_what_a_killed_run_left_can_be_read_and_reported(tmp_path):
    """kill -9 in the middle: whole rows, and a report can be made of them."""
    script = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from detharness.probes.serving.journal import TRIALS, Journal\n"
        "from detharness.records.run_folder import RunFolder\n"
        "folder = RunFolder.open('probe', {'schema': 's'}, out=Path(sys.argv[1]))\n"
        "with Journal(folder) as journal:\n"
        "    for number in range(2000):\n"
        "        journal.add(TRIALS, {'kind': 'load', 'request': number, 'play': 'x' * 500})\n"
        "        if number == 1500: os.kill(os.getpid(), 9)\n"
    )
    killed = subprocess.run([sys.executable, "-c", script, str(tmp_path / "run")], check=False)
    assert killed.returncode == -9
    content = (tmp_path / "run" / "trials.jsonl").read_bytes()
    with JsonlWriter(tmp_path / "run" / "trials.jsonl"):  # What is torn is set aside on opening.
        pass
    numbers = [row.value["request"] for row in read_jsonl(tmp_path / "run" / "trials.jsonl")]
    assert numbers == list(range(len(numbers)))
    assert len(numbers) == content.count(b"\n") > 0


def test_ten_thousand_records_are_reported_in_seconds(probe, fake_server, tmp_path):
    outcome = probe(fake_server(with_company=WIDE), trials=3)
    manifest, rows = manifest_of(outcome), rows_of(outcome)
    trials = [row for row in rows if row["kind"] == "trial"]
    path = tmp_path / "many.jsonl"
    path.write_bytes(
        b"".join(
            canonical_bytes(row) + b"\n"
            for row in (
                *(row for row in rows if row["kind"] != "trial"),
                *(trials[n % len(trials)] for n in range(10_000)),
            )
        )
    )
    started = time.perf_counter()
    report = build_report(manifest, (row.value for row in read_jsonl(path)))
    assert time.perf_counter() - started < 5.0  # The bound of the design; about a second on one core.
    assert report["arms"][0]["statistics"]["trials"] > 9000
