"""Generators: deterministic, valid, foreign to the probes, and each really does what its name says."""

from dataclasses import replace

import pytest

from detharness.errors import UsageError
from detharness.probes.bench import Bench
from detharness.probes.combined import named_scenario
from detharness.probes.scenario import Probe, merge
from detharness.probes.traffic.generators import GENERATORS, generator
from detharness.targets.protocol import EngineConfig, SamplingParams

TOKENS = 20
PROBES = (
    Probe("a", tuple(range(10, 50)), SamplingParams(max_tokens=TOKENS, ignore_eos=True, seq_seed=1, logprobs=2)),
    Probe("b", (1, 2, 3), SamplingParams(max_tokens=TOKENS, ignore_eos=True, seq_seed=2, logprobs=2)),
)
BENCH = Bench(PROBES, 101, EngineConfig(), 0, capture_logits=False)


@pytest.mark.parametrize("name", GENERATORS)
def test_the_same_seed_draws_the_same_traffic(name):
    assert GENERATORS[name](BENCH, TOKENS) == GENERATORS[name](BENCH, TOKENS)


@pytest.mark.parametrize("name", sorted(set(GENERATORS) - {"solo", "repeat"}))
def test_another_seed_or_round_draws_other_traffic(name):
    first = GENERATORS[name](BENCH, TOKENS).arrivals
    assert first != GENERATORS[name](replace(BENCH, seed=1), TOKENS).arrivals
    assert first != GENERATORS[name](replace(BENCH, round=1), TOKENS).arrivals


@pytest.mark.parametrize("name", GENERATORS)
def test_traffic_is_valid_and_watches_every_probe(name):
    traffic = GENERATORS[name](BENCH, TOKENS)
    ids = [arrival.request_id for arrival in traffic.arrivals]
    assert len(set(ids)) == len(ids)
    assert all(0 <= token < 101 for arrival in traffic.arrivals for token in arrival.token_ids)
    assert [arrival.step for arrival in traffic.arrivals] == sorted(arrival.step for arrival in traffic.arrivals)
    assert set(traffic.watched.values()) == {"a", "b"}
    by_id = {arrival.request_id: arrival for arrival in traffic.arrivals}
    for request_id, probe_id in traffic.watched.items():
        probe = next(probe for probe in PROBES if probe.id == probe_id)
        assert by_id[request_id].token_ids == probe.token_ids
        assert by_id[request_id].sampling == probe.sampling
        assert by_id[request_id].cancel_step is None


def test_fillers_are_ragged_and_share_no_token_with_the_probes():
    load = BENCH.fillers("x").arrivals(BENCH.fillers("x").lengths(30), TOKENS)
    taken = {token for probe in PROBES for token in probe.token_ids}
    assert not taken & {token for arrival in load for token in arrival.token_ids}
    assert len({len(arrival.token_ids) for arrival in load}) > 5


def steps(name, target):
    scenario = named_scenario(BENCH, name, None)
    return scenario, target.play(scenario.arrivals, scenario.config)


def most_requests(result):
    return max(len(step.groups) for step in result.trace)


def test_solo_never_shares_a_step(mini_target):
    assert most_requests(steps("solo", mini_target())[1]) == 1


def test_burst_shares_every_step(mini_target):
    assert most_requests(steps("burst", mini_target())[1]) == 2 + BENCH.filler_count


def test_needle_visits_every_slot_with_the_same_number_of_neighbours(mini_target):
    scenario, result = steps("needle", mini_target())
    slots = {
        (watch.probe_id, [group.request_id for group in step.groups].index(watch.request_id))
        for watch in scenario.watches
        for step in result.trace
        if watch.request_id in {group.request_id for group in step.groups}
    }
    assert slots == {(probe, slot) for probe in ("a", "b") for slot in range(BENCH.filler_count + 1)}
    assert most_requests(result) == BENCH.filler_count + 1


def test_borders_cut_a_prompt_and_cross_pages_by_one(mini_target):
    scenario, result = steps("borders", mini_target())
    lengths = {len(arrival.token_ids) for arrival in scenario.arrivals}
    assert {15, 16, 17, 31, 32, 33} <= lengths
    pieces = [g for step in result.trace for g in step.groups if g.request_id == "a" and g.kind == "prefill"]
    assert len(pieces) > 1


def test_shared_prefix_is_cold_cold_warm(mini_target):
    _, result = steps("shared-prefix", mini_target())
    cached = {name: result.completions[name, 0].cached_tokens for name in ("a~cold", "a~twin", "a~warm")}
    assert cached == {"a~cold": 0, "a~twin": 0, "a~warm": 32}
    assert result.completions["a~~head", 0].cached_tokens == 16


def test_tiny_pool_preempts_every_probe_several_times(mini_target):
    longer = tuple(replace(probe, sampling=replace(probe.sampling, max_tokens=48)) for probe in PROBES)
    scenario = named_scenario(replace(BENCH, probes=longer), "tiny-pool", None)
    completions = mini_target().play(scenario.arrivals, scenario.config).completions
    assert all(completions[name, 0].preemptions >= 2 for name in ("a", "b"))


def test_cancel_cuts_fillers_and_no_probe(mini_target):
    _, result = steps("cancel", mini_target())
    reasons = {name: completion.finish_reason for (name, _), completion in result.completions.items()}
    assert reasons["a"] == reasons["b"] == "length"
    assert "aborted" in reasons.values()


def test_mixed_samplers_and_seeds():
    for name in ("mixed-samplers", "mixed-seeds"):
        load = [a for a in GENERATORS[name](BENCH, TOKENS).arrivals if a.request_id.startswith(("~", "a~", "b~"))]
        assert any(arrival.sampling.temperature > 0 for arrival in load)
        assert len({arrival.sampling.seq_seed for arrival in load}) == len(load)


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(UsageError, match=r"unknown traffic 'brust'.*burst"):
        generator("brust")


def test_one_key_cannot_name_two_plays():
    scenario = BENCH.solo(PROBES[0])
    with pytest.raises(ValueError, match="two different plays"):
        merge([scenario, replace(BENCH.solo(PROBES[1]), key=scenario.key)])
