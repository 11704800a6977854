"""ddmin and least end where nothing more can be taken away, whatever fails."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detharness.probes.causes.ddmin import ddmin, least


def counting(fails):
    seen = []

    def tested(candidate):
        seen.append(candidate)
        return fails(candidate)

    return tested, seen


def test_one_culprit_of_a_thousand_is_found_in_few_tests():
    tested, seen = counting(lambda items: 677 in items)
    assert ddmin(range(1000), tested) == [677]
    assert len(seen) < 30


def test_two_culprits_far_apart_are_kept_together_and_in_order():
    assert ddmin(range(64), lambda items: {3, 60} <= set(items)) == [3, 60]


def test_what_fails_by_itself_needs_nothing():
    assert ddmin(range(9), lambda items: True) == []
    assert ddmin([], lambda items: pytest.fail("nothing is there to test")) == []


@given(st.lists(st.sets(st.integers(0, 11), max_size=4), min_size=1, max_size=4))
def test_nothing_can_be_dropped_from_the_result(culprits):
    """Any one of several sets of items may be the culprit: failing is monotone, and 1-minimal means minimal."""

    def fails(items):
        return any(culprit <= set(items) for culprit in culprits)

    left = ddmin(range(12), fails)
    assert fails(left)
    assert left == sorted(left)
    assert not any(fails(left[:at] + left[at + 1 :]) for at in range(len(left)))


@given(st.sets(st.integers(0, 200), min_size=1))
def test_the_next_smaller_number_does_not_fail(failing):
    high = max(failing)
    found = least(0, high, failing.__contains__)
    assert found in failing
    assert found == 0 or found - 1 not in failing


def test_a_monotone_border_is_found_in_few_tests():
    tested, seen = counting(lambda number: number >= 700)
    assert least(1, 1000, tested) == 700
    assert len(seen) < 30


def test_all_orders_of_tests_are_repeated_exactly():
    runs = []
    for _ in itertools.repeat(None, 2):
        tested, seen = counting(lambda items: len(items) >= 5)
        ddmin(range(30), tested)
        runs.append([tuple(items) for items in seen])
    assert runs[0] == runs[1]
