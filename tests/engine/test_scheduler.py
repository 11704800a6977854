"""The schedule: a pure function of requests and configuration, fair to the oldest, honest in its record."""

from __future__ import annotations

from collections import Counter

import pytest

from detharness.engine.params import EngineConfig, MemoryPolicy, PrefixCaching, SamplingParams
from detharness.targets.protocol import Arrival


@pytest.fixture
def target(tiny_target):
    return tiny_target("llama", "invariant", "fp32")


def arrivals(count: int, prompt: int = 9, tokens: int = 20) -> list[Arrival]:
    params = SamplingParams(max_tokens=tokens, ignore_eos=True)
    return [Arrival(i // 2, f"r{i}", tuple(range(i, i + prompt)), params) for i in range(count)]


@pytest.mark.parametrize("caching", PrefixCaching)
def test_the_same_script_gives_the_same_trace(target, caching):
    config = EngineConfig(num_blocks=12, page_size=4, max_step_tokens=11, prefix_caching=caching)
    assert target.play(arrivals(5), config).trace == target.play(arrivals(5), config).trace


def test_a_tiny_pool_preempts_the_same_request_several_times_and_the_oldest_never(target):
    played = target.play(arrivals(4, tokens=30), EngineConfig(num_blocks=12, page_size=4))
    losses = Counter(name for record in played.trace for name, _ in record.preempted)
    assert losses["r0"] == 0
    assert max(losses.values()) >= 2
    assert {name: done.preemptions for (name, _), done in played.completions.items() if done.preemptions} == losses
    recomputed = {g.request_id for record in played.trace for g in record.groups if g.kind == "recompute"}
    assert recomputed == set(losses)


def test_rows_of_a_step_stand_in_order_of_arrival_and_never_pass_the_budget(target):
    played = target.play(arrivals(6), EngineConfig(num_blocks=64, max_step_tokens=7))
    for record in played.trace:
        names = [group.request_id for group in record.groups]
        assert names == sorted(names)
        assert record.rows <= 7


def test_every_position_is_computed_exactly_once_unless_it_was_lost(target):
    played = target.play(arrivals(4), EngineConfig(num_blocks=64, page_size=4, max_step_tokens=13))
    computed: Counter[tuple[str, int]] = Counter()
    for record in played.trace:
        for group in record.groups:
            for offset in range(len(group.token_ids)):
                computed[group.request_id, group.start_position + offset] += 1
    assert set(computed.values()) == {1}
    # The last token drawn is never fed back.
    assert sum(computed.values()) == sum(
        len(done.prompt_token_ids) + len(done.token_ids) - 1 for done in played.completions.values()
    )


def test_max_running_holds_requests_back(target):
    played = target.play(arrivals(5), EngineConfig(num_blocks=64, max_running=2))
    assert max(len(record.groups) for record in played.trace) == 2


def test_reserve_admits_only_what_fits_whole(target):
    config = EngineConfig(num_blocks=14, page_size=4, memory_policy=MemoryPolicy.RESERVE)
    played = target.play(arrivals(4), config)
    assert not any(record.preempted for record in played.trace)
    # 9 + 20 - 1 tokens need 7 pages: two requests fit at a time.
    assert max(len(record.groups) for record in played.trace) == 2


def test_a_late_arrival_waits_for_its_step(target):
    late = [Arrival(5, "late", (1, 2), SamplingParams(max_tokens=2, ignore_eos=True))]
    played = target.play(late, EngineConfig(num_blocks=4))
    assert [bool(record.groups) for record in played.trace] == [False] * 5 + [True, True]
