"""The paired test against Fisher's own count, against enumeration, and against McNemar's exact test."""

import itertools
from fractions import Fraction
from math import comb

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detharness.statistics.paired import detectable_effect, sign_flip_test
from detharness.statistics.standard_errors import between_tasks

# Crossed minus self-fertilised maize heights in eighths of an inch (Darwin's data in Fisher, The Design of
# Experiments, sections 17 and 21).
DARWIN = [49, -67, 8, 16, 6, 23, 28, 41, 14, 29, 56, 24, 75, 60, -48]


def fractions(values):
    return [Fraction(value) for value in values]


def test_fishers_count():
    # "... 1726 ... or 5.267 per cent": both tails of the 2^15 choices.
    assert sign_flip_test(fractions(DARWIN)).p_value == 1726 / 2**15


@settings(max_examples=60)
@given(st.lists(st.fractions(-1, 1, max_denominator=8), max_size=8))
def test_by_enumeration(differences):
    seen = abs(sum(differences))
    told = [abs(difference) for difference in differences if difference]
    far = [
        abs(sum(sign * size for sign, size in zip(signs, told, strict=True))) >= seen
        for signs in itertools.product((1, -1), repeat=len(told))
    ]
    test = sign_flip_test(differences)
    assert test.exact
    assert test.tasks == len(told)
    assert test.p_value == sum(far) / len(far)


@pytest.mark.parametrize(("gained", "lost"), [(0, 0), (5, 0), (9, 3), (40, 41), (1500, 1000)])
def test_one_sample_a_task_is_mcnemars_exact_test(gained, lost):
    n, low = gained + lost, min(gained, lost)
    mcnemar = 1.0 if gained == lost else Fraction(2 * sum(comb(n, k) for k in range(low + 1)), 2**n)
    assert sign_flip_test(fractions([1] * gained + [-1] * lost + [0] * 30)).p_value == pytest.approx(float(mcnemar))


def test_the_full_size_of_our_benchmarks_is_counted_exactly():
    aime = [Fraction(value, 32) for value in range(-14, 16)]
    assert sign_flip_test(aime).exact
    assert sign_flip_test([Fraction(1, 8)] * 198).p_value == 2 / 2**198


def test_draws_stand_in_where_denominators_do_not_meet():
    # Denominators are primes, so that the sums are too many to be counted; the exact p-value by enumeration.
    primes = [101, 103, 107, 109, 113, 127, 131, 137, 139, 149]
    differences = [Fraction(1, prime) for prime in primes[:8]] + [Fraction(-1, prime) for prime in primes[8:]]
    test = sign_flip_test(differences)
    assert not test.exact
    assert test.draws == 10_000
    seen = abs(sum(differences))
    far = sum(
        abs(sum(sign * value for sign, value in zip(signs, differences, strict=True))) >= seen
        for signs in itertools.product((1, -1), repeat=10)
    )
    # Five standard deviations of a share from 10,000 draws; the seed is fixed, so it holds or it does not.
    share = far / 2**10
    assert test.p_value == pytest.approx(share, abs=5 * (share * (1 - share) / 10_000) ** 0.5)
    assert test == sign_flip_test(differences)
    assert test != sign_flip_test(differences, seed=1)


def test_the_standard_error_of_paired_differences():
    # Darwin: mean 314/15, s = 37.74, standard error 9.746 (Fisher, section 17).
    assert between_tasks(fractions(DARWIN)) == pytest.approx(9.746, abs=5e-4)


def test_detectable_effect():
    # The textbook 2.8 standard errors: z(0.975) + z(0.8) = 1.959964 + 0.841621.
    assert detectable_effect(1.0) == pytest.approx(2.801585, abs=1e-6)
    assert detectable_effect(0.0) == 0.0
