import math

import numpy as np
import pytest

from detharness.probes.divergence import Observation, compare, ulp_distance

VOCAB = 7


def reply(tokens, *, seed=0, stopped=False, greedy=True, logits=True, prompt=3):
    """A reply whose logits rows peak at its tokens by a wide margin."""
    rows = np.random.default_rng(seed).standard_normal((len(tokens), VOCAB)).astype(np.float32)
    for row, token in zip(rows, tokens, strict=True):
        row[token] = 9.0
    return Observation(
        token_ids=tuple(tokens),
        prompt_length=prompt,
        logprobs=np.full(len(tokens), -0.5, dtype=np.float32),
        gaps=np.full(len(tokens), 2.0, dtype=np.float32),
        logits=rows if logits else None,
        stopped=stopped,
        greedy=greedy,
    )


def changed(base, *, index, token=None, logit=None, logprob=None):
    tokens = list(base.token_ids)
    rows, logprobs = base.logits.copy(), base.logprobs.copy()
    if token is not None:
        tokens[index] = token
    if logit is not None:
        rows[index, logit[0]] = logit[1]
    if logprob is not None:
        logprobs[index] = logprob
    return Observation(tuple(tokens), base.prompt_length, logprobs, base.gaps, rows, base.stopped, base.greedy)


def test_equal_replies_do_not_move():
    found = compare(reply([1, 2, 3]), reply([1, 2, 3]), "fp32")
    assert not found.moved
    assert (found.tokens, found.max_ulp, found.max_logprob_gap, found.first_token) == (3, 0, 0.0, None)


def test_one_ulp_in_one_logit_moves_and_names_its_row():
    base = reply([1, 2, 3])
    up = np.nextafter(base.logits[1, 4], np.float32(math.inf))
    found = compare(base, changed(base, index=1, logit=(4, up)), "fp32")
    assert found.moved
    assert (found.first_logits, found.first_logprob, found.first_token, found.max_ulp) == (1, None, None, 1)


def test_a_logprob_bit_moves_without_a_token():
    base = reply([1, 2, 3])
    found = compare(base, changed(base, index=2, logprob=np.nextafter(np.float32(-0.5), np.float32(0))), "fp32")
    assert (found.first_logprob, found.first_token) == (2, None)
    assert found.max_logprob_gap == 2.0**-25


def test_first_token_divergence_is_relative_and_absolute_and_ends_the_comparison():
    base = reply([1, 2, 3, 4])
    other = changed(changed(base, index=1, token=5), index=3, logit=(0, 100.0))
    found = compare(base, other, "fp32")
    assert (found.first_token, found.position, found.tokens, found.first_logprob) == (1, 4, 2, 1)
    assert found.max_ulp == 0  # The row at the divergence still saw equal tokens; row 3 did not and is not read.


def test_a_cut_reply_is_compared_as_far_as_it_goes():
    found = compare(
        reply([1, 2, 3]),
        reply([1, 2]),
        "fp32",
    )
    assert (found.tokens, found.first_token) == (2, None)


@pytest.mark.parametrize("swap", [False, True])
def test_a_reply_that_ended_by_itself_differs_where_the_other_goes_on(swap):
    pair = [reply([1, 2], stopped=True), reply([1, 2, 3])]
    found = compare(*(pair[::-1] if swap else pair), "fp32")
    assert (found.first_token, found.tokens) == (2, 3)
    assert found.divergence_class is None


def test_nothing_to_compare_is_not_a_move():
    assert compare(reply([1, 2]), reply([]), "fp32").tokens == 0


def test_different_prompts_are_refused():
    with pytest.raises(ValueError, match="not comparable"):
        compare(reply([1]), reply([1], prompt=4), "fp32")


def test_the_rest_of_a_reply_is_a_reply():
    base = reply([1, 2, 3, 4])
    rest = base.from_token(2)
    assert rest.token_ids == (3, 4)
    assert rest.prompt_length == 5
    assert np.array_equal(rest.logits, base.logits[2:])


def at_divergence(first, second, other_first, other_second, dtype="fp32", greedy=True):
    """Two one-token replies whose rows hold these two best logits, the rest far below."""
    rows = np.full((2, 1, VOCAB), -20.0, dtype=np.float32)
    rows[0, 0, :2] = first, second
    rows[1, 0, :2] = other_first, other_second
    pair = [
        Observation((token,), 3, np.zeros(1, np.float32), np.zeros(1, np.float32), row, False, greedy)
        for token, row in zip((0, 1), rows, strict=True)
    ]
    return compare(*pair, dtype)


def test_an_exact_tie():
    found = at_divergence(5.0, 5.0, 5.0, 5.00001)
    assert (found.margin, found.divergence_class) == (0.0, "tie")


def test_a_flip_that_rounding_explains_is_a_near_tie():
    assert at_divergence(5.0001, 5.0, 5.0, 5.0001).divergence_class == "near_tie"
    assert at_divergence(5.5, 5.0, 5.0, 5.5, dtype="bf16").divergence_class == "near_tie"


def test_a_jump_that_costs_more_than_half_the_digits_is_confident():
    assert at_divergence(5.5, 5.0, 5.0, 5.5).divergence_class == "confident"
    assert at_divergence(8.0, 5.0, 5.0, 8.0, dtype="bf16").divergence_class == "confident"


def test_a_flip_without_drift_is_confident_because_the_logits_do_not_explain_it():
    assert at_divergence(5.0001, 5.0, 5.0001, 5.0).divergence_class == "confident"


def test_a_sampled_flip_has_no_class():
    found = at_divergence(5.0, 4.0, 4.0, 5.0, greedy=False)
    assert (found.margin, found.divergence_class) == (1.0, None)


def test_without_logits_the_margin_comes_from_the_logprobs():
    found = compare(reply([1, 2], logits=False), reply([1, 3], logits=False), "fp32")
    assert (found.margin, found.max_ulp, found.divergence_class) == (2.0, None, None)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_poisoned_logit_moves_and_leaves_only_finite_numbers(value):
    base = reply([1, 2, 3])
    found = compare(base, changed(base, index=1, logit=(4, value)), "fp32")
    assert (found.first_logits, found.non_finite, found.max_drift) == (1, True, None)
    assert all(math.isfinite(v) for v in found.as_record().values() if isinstance(v, float))


@pytest.mark.parametrize(
    ("left", "right", "distance"),
    [
        (1.0, 1.0, 0),
        (1.0, np.nextafter(np.float32(1), np.float32(2)), 1),
        (-1.0, np.nextafter(np.float32(-1), np.float32(-2)), 1),
        (0.0, -0.0, 1),
        (np.float32(1e-45), np.float32(-1e-45), 3),
        (1.0, 2.0, 2**23),
    ],
)
def test_ulp_distance_counts_floats_between(left, right, distance):
    one, two = np.array([left], dtype=np.float32), np.array([right], dtype=np.float32)
    assert ulp_distance(one, two).tolist() == ulp_distance(two, one).tolist() == [distance]
