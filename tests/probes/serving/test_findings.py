"""Two-sided: a sound server moves in nothing, and each fault is found in its own finding and in no other."""

from __future__ import annotations

import pytest

from detharness.probes.serving.report import exit_code

WIDE, NARROW = 1e-3, 1e-7  # A drift that flips near ties, and one that moves logprobs alone.


def statuses(outcome):
    return {name: axis["status"] for name, axis in outcome.report["axes"].items()}


def test_nothing_moves_on_a_sound_server(probe, fake_server):
    outcome = probe(fake_server())
    report = outcome.report
    assert statuses(outcome) == dict.fromkeys(report["axes"], "identical")
    assert report["verdict"] == "identical"
    assert report["complete"]
    assert exit_code(report, interrupted=False) == 0
    assert all(prompt["unique_completions"] == 1 for prompt in report["arms"][0]["prompts"])
    assert report["findings"]["co_batching"]["p_value"] == 1.0


@pytest.mark.parametrize("seen", [{}, {"ids": False}, {"ids": False, "logprobs": False}])
@pytest.mark.parametrize("salts", [True, False])
def test_a_fault_of_company_is_blamed_on_company(probe, fake_server, seen, salts):
    outcome = probe(fake_server(with_company=WIDE, salts=salts, **seen), trials=3)
    assert statuses(outcome) == {"run_to_run": "identical", "co_batching": "diverged", "prefix_cache": "identical"}
    finding = outcome.report["findings"]["co_batching"]
    assert finding["solo"]["diverged"] == 0
    assert 0 < finding["loaded"]["diverged"] <= finding["loaded"]["n"]
    assert finding["p_value"] < 0.025
    assert finding["test"] == "Fisher's exact test, two-sided, stratified by prompt"
    assert exit_code(outcome.report, interrupted=False) == 1


@pytest.mark.parametrize("salts", [True, False])
def test_a_fault_of_the_cache_is_blamed_on_the_cache(probe, fake_server, salts):
    outcome = probe(fake_server(after_hit=WIDE, salts=salts), trials=3)
    assert statuses(outcome) == {"run_to_run": "identical", "co_batching": "identical", "prefix_cache": "diverged"}
    assert set(outcome.report["arms"][0]["axes"]["prefix_cache"]["levels"]) == {"full", "partial"}
    assert outcome.report["axes"]["prefix_cache"]["exercised"]["cached_tokens"] > 0


def test_noise_is_blamed_on_neither_load_nor_cache(probe, fake_server):
    outcome = probe(fake_server(by_itself=WIDE, noise_rate=0.5), trials=4)
    report = outcome.report
    assert report["axes"]["run_to_run"]["status"] == "diverged"
    for name in ("co_batching", "prefix_cache"):
        assert report["axes"][name]["status"] == "not_tested"
        assert report["axes"][name]["reason"] == "not told apart"
        assert report["findings"][name]["p_value"] > 0.025
    assert report["verdict"] == "diverged"


def test_logprobs_that_move_alone_are_found_and_no_text_changes(probe, fake_server):
    report = probe(fake_server(with_company=NARROW)).report
    assert report["axes"]["co_batching"]["status"] == "diverged"
    assert report["axes"]["co_batching"]["diverged_tokens"] == 0
    assert all(prompt["unique_completions"] == 1 for prompt in report["arms"][0]["prompts"])
    assert report["arms"][0]["prompts"][0]["max_logprob_gap"] > 0


def test_logprobs_that_move_alone_are_unseen_where_none_are_shown(probe, fake_server):
    report = probe(fake_server(with_company=NARROW, logprobs=False)).report
    assert report["verdict"] == "identical"
    assert any("shows no logprobs" in line for line in report["not_shown"])


def test_a_cache_that_is_not_told_of_is_not_tested(probe, fake_server):
    outcome = probe(fake_server(cached_told=False), axes="all")
    axis = outcome.report["axes"]["prefix_cache"]
    assert (axis["status"], axis["reason"]) == ("not_tested", "not exercised")
    assert exit_code(outcome.report, interrupted=False) == 3


def test_a_server_without_a_cache_is_not_tested_for_one(probe, fake_server):
    outcome = probe(fake_server(cache=False))
    assert outcome.report["axes"]["prefix_cache"]["status"] == "not_tested"
    assert exit_code(outcome.report, interrupted=False) == 0
