"""Schedule fuzzing: the same requests under any schedule give the same token ids and the same logprob bits.

Arrival order and steps, pool size, page size, chunk budget, prefix cache, memory policy, page placement, NaN in
free pages, cancelled and sampled neighbours, threads, family and dtype are all drawn at random. The oracle is
each request alone on a roomy engine. The library-default kernels must fail the same property.

``pytest tests/engine/test_schedule_fuzz.py --schedules 10000`` plays more.
"""

from __future__ import annotations

import struct
from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from detharness.targets.protocol import (
    Arrival,
    EngineConfig,
    FreePages,
    MemoryPolicy,
    PagePlacement,
    PrefixCaching,
    SamplingParams,
)

HEAD = tuple(range(40, 75))  # A prefix that two of the probed requests share, so that caches can hit.
PROBED = {
    "greedy": ((*HEAD, 101, 7, 9), SamplingParams(max_tokens=9, logprobs=0, ignore_eos=True)),
    "sampled": (
        (*HEAD, 33),
        SamplingParams(
            max_tokens=8,
            temperature=0.9,
            top_p=0.95,
            top_k=80,
            seq_seed=11,
            logprobs=0,
            processed_logprobs=True,
        ),
    ),
    "pair": (
        (3, 1, 4, 1, 5),
        SamplingParams(max_tokens=6, temperature=1.1, min_p=0.01, seq_seed=5, n=2, logprobs=2),
    ),
}


@dataclass(frozen=True)
class Scenario:
    """One random schedule: arrivals (probed and foreign), and the engine's configuration."""

    family: str
    arrivals: tuple[Arrival, ...]
    config: EngineConfig


@st.composite
def scenarios(draw) -> Scenario:
    arrivals = []
    for name, (tokens, params) in PROBED.items():
        cancel = draw(st.none() | st.integers(2, 12), label=f"cancel {name}") if name != "greedy" else None
        arrivals.append(Arrival(draw(st.integers(0, 6)), name, tokens, params, cancel))
    for index in range(draw(st.integers(0, 4), label="neighbours")):
        shared = draw(st.sampled_from([0, 16, 35]))
        own = draw(st.lists(st.integers(0, 255), min_size=1, max_size=30))
        params = SamplingParams(
            max_tokens=draw(st.integers(1, 10)),
            temperature=draw(st.sampled_from([0.0, 1.3])),
            ignore_eos=True,
        )
        arrivals.append(
            Arrival(
                draw(st.integers(0, 8)),
                f"neighbour {index}",
                HEAD[:shared] + tuple(own),
                params,
                draw(st.none() | st.integers(1, 10)),
            )
        )
    page_size = draw(st.sampled_from([1, 2, 5, 8, 16, 32]))
    largest = max(len(a.token_ids) + a.sampling.max_tokens for a in arrivals)
    floor = -(-largest // page_size)
    config = EngineConfig(
        dtype=draw(st.sampled_from(["fp32", "bf16", "bf16w"])),
        num_blocks=floor + draw(st.sampled_from([0, 0, 1, 2, 4, 64])),
        page_size=page_size,
        max_step_tokens=draw(st.sampled_from([1, 3, 7, 16, 33, 64, 512])),
        max_running=draw(st.sampled_from([1, 2, 3, 64])),
        memory_policy=draw(st.sampled_from(list(MemoryPolicy))),
        prefix_caching=draw(st.sampled_from(list(PrefixCaching))),
        page_placement=draw(st.sampled_from(list(PagePlacement))),
        placement_seed=draw(st.integers(0, 3)),
        free_pages=draw(st.sampled_from(list(FreePages))),
        threads=draw(st.sampled_from([1, 2])),
    )
    order = draw(st.permutations(arrivals))
    return Scenario(draw(st.sampled_from(["llama", "mistral", "qwen2", "qwen3"])), tuple(order), config)


def bits(completion) -> list[tuple]:
    """Token ids with the exact bits of every reported logprob."""

    def pack(value):
        return None if value is None else struct.pack("<f", value)

    return [
        (
            entry.token_id,
            pack(entry.logprob),
            pack(entry.processed_logprob),
            [(i, pack(v)) for i, v in entry.top],
        )
        for entry in completion.logprobs
    ]


class Fuzz:
    """Plays scenarios under one kernel set, compares with each request alone, counts what was exercised."""

    def __init__(self, tiny_target, kernels: str, backend: str = "auto") -> None:
        self._target = lambda family, dtype: tiny_target(family, kernels, dtype, backend)
        self._alone: dict[tuple[str, str, str], dict] = {}
        self.counts: Counter[str] = Counter()

    def alone(self, family: str, dtype: str, name: str) -> dict:
        key = (family, dtype, name)
        if key not in self._alone:
            tokens, params = PROBED[name]
            played = self._target(family, dtype).play(
                [Arrival(0, name, tokens, params)], EngineConfig(dtype=dtype, num_blocks=64)
            )
            self._alone[key] = {sample: bits(done) for (_, sample), done in played.completions.items()}
        return self._alone[key]

    def check(self, scenario: Scenario) -> None:
        played = self._target(scenario.family, scenario.config.dtype).play(scenario.arrivals, scenario.config)
        self._count(scenario, played)
        for (name, sample), done in played.completions.items():
            if name not in PROBED:
                continue
            expected = self.alone(scenario.family, scenario.config.dtype, name)[sample]
            seen = bits(done)
            if done.finish_reason == "aborted":
                expected = expected[: len(seen)]
            assert seen == expected, f"{name} sample {sample} moved"
            self.counts["completions compared"] += 1
            self.counts["tokens compared"] += len(seen)

    def _count(self, scenario: Scenario, played) -> None:
        self.counts["schedules"] += 1
        for record in played.trace:
            kinds = Counter(group.kind for group in record.groups)
            self.counts["steps with several requests"] += len(record.groups) > 1
            self.counts["mixed steps"] += "decode" in kinds and len(kinds) > 1
            self.counts["recomputed groups"] += kinds["recompute"]
            self.counts["preemptions"] += len(record.preempted)
            self.counts["cache hits"] += len(record.cache_hits)
            self.counts["chunk splits"] += sum(
                group.kind == "prefill" and group.start_position > 0 for group in record.groups
            )
        self.counts["aborted"] += sum(done.finish_reason == "aborted" for done in played.completions.values())
        self.counts["two threads"] += played.trace[0].threads == 2
        self.counts["poisoned pools"] += scenario.config.free_pages is FreePages.NAN


def run(fuzz: Fuzz, schedules: int) -> None:
    @settings(
        max_examples=schedules,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(scenarios())
    def property_holds(scenario: Scenario) -> None:
        fuzz.check(scenario)

    property_holds()


@pytest.mark.timeout(0)  # The 10,000-schedule run takes as long as it takes.
def test_any_schedule_gives_the_same_bits_under_invariant_kernels(tiny_target, backend, request):
    schedules = request.config.getoption("--schedules")
    fuzz = Fuzz(tiny_target, "invariant", backend)
    run(fuzz, schedules)
    print(dict(sorted(fuzz.counts.items())))
    assert fuzz.counts["schedules"] >= schedules
    for axis in (
        "steps with several requests",
        "mixed steps",
        "recomputed groups",
        "preemptions",
        "cache hits",
        "chunk splits",
        "aborted",
        "two threads",
        "poisoned pools",
    ):
        assert fuzz.counts[axis] >= schedules // 10, f"{axis} was hardly exercised: {fuzz.counts}"


def test_the_library_kernels_fail_the_same_property(tiny_target):
    with pytest.raises(AssertionError, match="moved"):
        run(Fuzz(tiny_target, "torch"), 200)
