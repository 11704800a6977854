from fractions import Fraction
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detharness.statistics.pass_at_k import maj_at_k, pass_at_k


def vote(answers, correct):
    """The credit of one vote, straight from the rule."""
    counts = {answer: answers.count(answer) for answer in answers if answer is not None}
    most = max(counts.values(), default=0)
    winners = [answer for answer, count in counts.items() if count == most]
    return Fraction(1, len(winners)) if correct in winners else Fraction(0)


answers_given = st.lists(st.sampled_from([0, 1, 2, None]), min_size=1, max_size=7)


@settings(max_examples=60, deadline=None)
@given(answers_given, st.data())
def test_maj_at_k_is_the_mean_over_all_subsets(answers, data):
    k = data.draw(st.integers(1, len(answers)))
    distinct = sorted({answer for answer in answers if answer is not None})
    subsets = list(combinations(answers, k))
    expected = sum((vote(subset, 1) for subset in subsets), Fraction(0)) / len(subsets)
    votes = [answers.count(answer) for answer in distinct]
    correct = distinct.index(1) if 1 in distinct else None
    assert maj_at_k(votes, correct, answers.count(None), k) == expected


@settings(max_examples=60, deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=8), st.data())
def test_pass_at_k_is_the_mean_over_all_subsets(verdicts, data):
    k = data.draw(st.integers(1, len(verdicts)))
    subsets = list(combinations(verdicts, k))
    assert pass_at_k(len(verdicts), sum(verdicts), k) == Fraction(sum(map(any, subsets)), len(subsets))


def test_at_one_both_are_the_share_of_correct_samples():
    assert pass_at_k(8, 3, 1) == maj_at_k([3, 4], 0, 1, 1) == Fraction(3, 8)


def test_a_tie_gives_a_share():
    assert maj_at_k([2, 2, 2], 1, 0, 6) == Fraction(1, 3)


def test_sixty_four_different_answers_are_voted_on_at_once():
    assert maj_at_k([1] * 64, 5, 0, 64) == Fraction(1, 64)
    assert maj_at_k([32, 32], 0, 0, 63) == Fraction(1, 2)


@pytest.mark.parametrize("k", [0, 3])
def test_fewer_samples_than_k_is_no_number(k):
    with pytest.raises(ValueError, match="k must lie between 1 and the 2 samples"):
        pass_at_k(2, 0, k)
    with pytest.raises(ValueError, match="k must lie between 1 and the 2 samples"):
        maj_at_k([1, 1], 0, 0, k)


def test_more_correct_than_samples_is_refused():
    with pytest.raises(ValueError, match="correct must lie between 0 and 2"):
        pass_at_k(2, 3, 1)
