"""The first operator and layer that part two runs are named; sound runs name nothing."""

import pytest

from detharness.probes.causes.localize import localize
from detharness.probes.scenario import Scenario
from detharness.targets.protocol import Arrival, EngineConfig, PrefixCaching, SamplingParams

PROMPT = tuple(range(40, 60))


def arrival(name, tokens=PROMPT, step=0, max_tokens=4):
    sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True, logprobs=2, seq_seed=1)
    return Arrival(step, name, tuple(tokens), sampling, capture_logits=True)


def scenario(*arrivals, **config):
    return Scenario("play", arrivals, EngineConfig(**{"num_blocks": 32, **config}))


ALONE = scenario(arrival("a"))
BESIDE = scenario(arrival("a"), arrival("b", (5, 6, 7), step=2))


def test_a_norm_in_front_of_layer_1_that_counts_rows_is_named(faulty_target):
    target = faulty_target("CountingNorm", 1, len(PROMPT))
    crowd = scenario(arrival("a"), arrival("b", (5, 6, 7)))
    found = localize(target, crowd, "a", ALONE, "a")
    assert (found.status, found.operator, found.layer) == ("found", "add_rms_norm.input", 1)
    assert (found.position, found.step, found.rows_before) == (0, 0, 0)
    assert found.schedule["trial"]["rows_in_step"] == len(PROMPT) + 3
    assert found.schedule["reference"]["rows_in_step"] == len(PROMPT)
    assert found.ulp_histogram == [{"low": 0, "high": 0, "count": 95}, {"low": 1, "high": 1, "count": 1}]
    assert found.plan == ("rms_norm:96=8x12:halving:pairwise",)
    assert found.same_bits_observed


@pytest.mark.parametrize("layer", [0, 1])
def test_attention_that_counts_requests_is_named_in_its_layer_and_step(faulty_target, layer):
    """The neighbour comes in step 2, so the prompt's rows and the first decoded row agree."""
    found = localize(faulty_target("BatchAttention", layer), BESIDE, "a", ALONE, "a")
    assert (found.operator, found.layer) == ("attention", layer)
    assert (found.step, found.position) == (2, len(PROMPT) + 1)
    assert found.rows_before == len(PROMPT) + 1
    trial, reference = found.schedule["trial"], found.schedule["reference"]
    assert (trial["kind"], trial["requests_in_step"], reference["requests_in_step"]) == ("decode", 2, 1)
    assert [plan.split(":")[0] for plan in found.plan] == [
        "attention.scores",
        "attention.softmax",
        "attention.values",
    ]
    assert sum(found_bin["count"] for found_bin in found.ulp_histogram) == 96


def test_a_draw_that_looks_at_others_is_named_when_all_logits_agree(faulty_target):
    found = localize(faulty_target("CrowdSampler"), BESIDE, "a", ALONE, "a")
    assert (found.operator, found.layer, found.step) == ("sample", -1, 2)
    assert found.position == len(PROMPT) + 2
    assert found.ulp_histogram is None
    assert found.schedule["trial"]["requests_in_step"] == 2


def test_logprobs_that_move_by_themselves_are_named(faulty_target):
    found = localize(faulty_target("CrowdLogSoftmax"), BESIDE, "a", ALONE, "a")
    assert (found.operator, found.layer, found.step) == ("log_softmax", -1, 2)


def test_what_vanishes_under_observation_is_said_to_be_not_reproduced(faulty_target):
    found = localize(faulty_target("FaultyWhenFused"), BESIDE, "a", ALONE, "a")
    assert (found.status, found.operator, found.same_bits_observed) == ("not_reproduced", None, False)
    assert found.rows_before == len(PROMPT) + 3


def test_sound_kernels_give_nothing_to_localise(faulty_target):
    assert localize(faulty_target("SoundKernels"), BESIDE, "a", ALONE, "a") is None


def test_two_requests_of_one_play_are_compared_in_it(faulty_target):
    """The second copy comes when the first is decoding: other company at every position."""
    crowd = scenario(arrival("a"), arrival("copy", step=4))
    found = localize(faulty_target("CountingNorm", 1, 1), crowd, "copy", crowd, "a")
    assert found is None
    crowd = scenario(arrival("a"), arrival("copy", step=2), arrival("c", (3,), step=2))
    found = localize(faulty_target("BatchAttention", 1), crowd, "copy", crowd, "a")
    assert (found.operator, found.layer, found.position) == ("attention", 1, 0)


def test_the_librarys_first_moved_operator_is_a_linear_layer_or_attention(tiny_target):
    """Real kernels: their moved rows are equal up to the operator named, by the order of computation."""
    crowd = scenario(arrival("a"), *(arrival(f"b{index}", (5, 6, 7 + index)) for index in range(4)))
    found = localize(tiny_target("llama", "torch"), crowd, "a", ALONE, "a")
    assert found.operator.split(".")[0] in ("linear", "attention")
    assert found.plan == ()
    assert found.same_bits_observed


def test_rows_found_in_the_cache_are_followed_to_who_computed_them(faulty_target):
    """The fault bites when the stranger prefills beside others; the watched request finds those pages later."""
    shared = tuple(range(40, 73))
    play = scenario(
        arrival("stranger", shared, max_tokens=1),
        arrival("other", (5, 6), max_tokens=1),
        arrival("a", shared, step=2),
        prefix_caching=PrefixCaching.ON,
    )
    found = localize(faulty_target("BatchAttention", 0), play, "a", scenario(arrival("a", shared)), "a")
    assert (found.operator, found.layer, found.position) == ("attention", 0, 0)
    assert found.schedule["trial"]["request"] == "stranger"
    assert found.step == 0
