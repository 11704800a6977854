"""Faulty kernels whose smallest failing traffic is known: the shrinker reaches it, and says what it took."""

from dataclasses import replace

from detharness.probes.causes.failure import Failure, Play, Side
from detharness.probes.causes.shrink import shrink
from detharness.targets.protocol import (
    Arrival,
    EngineConfig,
    FreePages,
    PagePlacement,
    PrefixCaching,
    SamplingParams,
)

PROMPT = tuple(range(40, 60))


def arrival(name, tokens=PROMPT, step=0, max_tokens=12, **sampling):
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True, logprobs=2, seq_seed=1, **sampling)
    return Arrival(step, name, tuple(tokens), params, capture_logits=True)


BUSY = (
    arrival("n0", range(5, 33), step=1, max_tokens=9),
    arrival("a", step=3),
    arrival("n1", (7, 8, 9), step=2, max_tokens=20, temperature=0.8, top_p=0.9),
    replace(arrival("n2", (9,) * 11, step=4), cancel_step=9),
    arrival("n3", (1, 2), step=5),
)
SETTINGS = {
    "num_blocks": 64,
    "page_size": 5,
    "page_placement": PagePlacement.PERMUTED,
    "placement_seed": 3,
    "free_pages": FreePages.NAN,
    "prefix_caching": PrefixCaching.ON,
}
ALONE = Play((arrival("a"),), EngineConfig(num_blocks=8))


def failure(*arrivals, reference=ALONE, request="a", **config):
    trial = Side(Play(arrivals, EngineConfig(**{"num_blocks": 64, **config})), (request, 0))
    return Failure(trial, Side(reference, ("a", 0)))


def test_a_fault_of_two_requests_shrinks_to_one_neighbour_of_one_token(faulty_target):
    found = shrink(faulty_target("BatchAttention", 1), failure(*BUSY, **SETTINGS))
    neighbour, watched = found.failure.trial.play.arrivals
    assert (watched.request_id, watched.step, len(watched.token_ids), watched.sampling.max_tokens) == ("a", 0, 1, 1)
    assert (neighbour.step, neighbour.token_ids, neighbour.sampling.max_tokens) == (0, (0,), 1)
    assert neighbour.sampling == SamplingParams(max_tokens=1, ignore_eos=True, seq_seed=0)
    assert found.failure.trial.play.config == EngineConfig(num_blocks=2)
    assert found.failure.reference.play.arrivals == (watched,)
    assert found.comparison.moved
    assert found.minimal
    assert found.as_record() == {
        "before": {"requests": 5, "prompt_tokens": 64, "reply_tokens": 65, "last_step": 5},
        "after": {"requests": 2, "prompt_tokens": 2, "reply_tokens": 2, "last_step": 0},
        "replays": found.replays,
        "most_replays": 400,
        "minimal": True,
    }


def single_reductions(held):
    """Everything one smaller than ``held``: a neighbour less, a token less anywhere, an arrival one step earlier."""

    def cut(name, **changes):
        return held.each_request((name,), lambda a: replace(a, **changes))

    for name in held.neighbours:
        yield held.each(
            lambda play, name=name: replace(play, arrivals=tuple(a for a in play.arrivals if a.request_id != name))
        )
    for a in held.trial.play.arrivals:
        if len(a.token_ids) > 1:
            yield cut(a.request_id, token_ids=a.token_ids[:-1])
        if a.sampling.max_tokens > 1:
            yield cut(a.request_id, sampling=replace(a.sampling, max_tokens=a.sampling.max_tokens - 1))
        if a.step > 0:
            yield cut(a.request_id, step=a.step - 1)


def test_rows_are_kept_as_far_as_the_fault_needs_them(faulty_target):
    """The fault needs five rows in a step, and no less than that is left; nothing smaller by one fails."""
    target = faulty_target("CountingNorm", 1, 4)
    found = shrink(target, failure(*BUSY, **SETTINGS))
    assert found.minimal
    assert sum(len(a.token_ids) for a in found.failure.trial.play.arrivals) == 5
    smaller = list(single_reductions(found.failure))
    assert len(smaller) >= 3
    assert [shrink(target, candidate) for candidate in smaller] == [None] * len(smaller)
    assert shrink(target, found.failure) is not None


def test_sound_kernels_leave_nothing_to_shrink(faulty_target):
    assert shrink(faulty_target("SoundKernels"), failure(*BUSY, **SETTINGS)) is None


def test_the_search_stops_at_its_bound_with_what_it_has(faulty_target):
    target = faulty_target("BatchAttention", 1)
    found = shrink(target, failure(*BUSY, **SETTINGS), most_replays=8)
    assert (found.replays, found.most_replays, found.minimal) == (8, 8, False)
    assert found.comparison.moved
    assert found.as_record()["after"] != found.before
    again = shrink(target, found.failure)  # What is held then still fails, and can be gone on with.
    assert again.minimal


def test_the_same_failure_shrinks_to_the_same_one_in_as_many_plays(faulty_target):
    target = faulty_target("BatchAttention", 1)
    first, second = (shrink(target, failure(*BUSY, **SETTINGS)) for _ in range(2))
    assert (first.failure, first.replays) == (second.failure, second.replays)


def test_two_requests_of_one_play_keep_each_other(faulty_target):
    """The copy starts beside a stranger; who is compared with it is never dropped, and both prompts shrink alike."""
    play = Play((arrival("a"), arrival("copy", step=14), arrival("n", (3, 4), step=14)), EngineConfig(num_blocks=64))
    start = Failure(Side(play, ("copy", 0)), Side(play, ("a", 0)))
    found = shrink(faulty_target("BatchAttention", 0), start)
    assert found.failure.trial.play == found.failure.reference.play
    held = found.failure.trial.play
    assert [a.request_id for a in held.arrivals][:2] == ["a", "copy"]
    assert len(held.arrivals) == 2 or held.arrivals[2].token_ids == (0,)
    assert len({a.token_ids for a in held.arrivals[:2]}) == 1
    assert found.minimal


def test_a_setting_that_the_fault_needs_is_kept_and_the_others_go(faulty_target):
    """Prompts in pieces of 5: the pieces differ from the whole; nothing else of the configuration matters."""
    found = shrink(faulty_target("ChunkAttention"), failure(arrival("a"), *BUSY[2:4], max_step_tokens=5, **SETTINGS))
    config = found.failure.trial.play.config
    assert config == EngineConfig(num_blocks=1, max_step_tokens=1)
    (watched,) = found.failure.trial.play.arrivals
    assert len(watched.token_ids) == 2
    assert found.failure.reference.play.config.max_step_tokens == 512


def test_a_candidate_whose_premise_fails_is_no_failure(faulty_target):
    """The reference must go on equalling the reply of the probe alone; here it cannot, so nothing is claimed."""
    crowd = Play(BUSY, EngineConfig(num_blocks=64))
    other = Play(BUSY[:2], EngineConfig(num_blocks=64))
    held = Failure(Side(crowd, ("a", 0)), Side(other, ("a", 0)))
    target = faulty_target("LoadAttention", 0)
    assert shrink(target, held) is not None
    premise = (Side(ALONE, ("a", 0)), Side(other, ("a", 0)))
    assert shrink(target, replace(held, alike=premise)) is None
