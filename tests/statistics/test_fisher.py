"""Fisher's exact test against published p-values and a count by enumeration."""

from fractions import Fraction
from itertools import combinations, product
from math import comb

import pytest

from detharness.statistics.fisher import fisher_exact, stratified_fisher_exact


@pytest.mark.parametrize(
    ("table", "p_value", "places"),
    [
        # Fisher's tea tasting: 3 of 4 cups right (R's documentation of fisher.test; exactly 34/70).
        ((3, 4, 1, 4), 0.4857, 4),
        # Fisher's criminal twins, 10 of 13 against 2 of 17 (R's documentation, "Convictions").
        ((10, 13, 2, 17), 0.0005367, 7),
        # Whales and sharks in two oceans, [[8, 2], [1, 5]] (scipy's documentation of fisher_exact).
        ((8, 10, 1, 6), 0.0350, 4),
    ],
)
def test_published_values(table, p_value, places):
    assert round(fisher_exact(*table), places) == p_value


@pytest.mark.parametrize("case", [(3, 5, 0, 4), (0, 3, 4, 6), (2, 4, 2, 4), (5, 5, 0, 4)])
def test_by_enumeration(case):
    # Every way to place the events among all trials is equally likely: count those whose table is no likelier.
    events_a, trials_a, events_b, trials_b = case
    placings = [
        sum(place < trials_a for place in placing)
        for placing in combinations(range(trials_a + trials_b), events_a + events_b)
    ]
    ways = {in_a: placings.count(in_a) for in_a in set(placings)}
    expected = sum(way for way in ways.values() if way <= ways[events_a]) / len(placings)
    assert fisher_exact(*case) == expected


def test_equal_arms_are_no_evidence_and_exchanging_them_changes_nothing():
    assert fisher_exact(0, 20, 0, 20) == 1.0
    assert fisher_exact(7, 20, 7, 20) == 1.0
    assert fisher_exact(9, 20, 1, 30) == fisher_exact(1, 30, 9, 20)


@pytest.mark.parametrize("case", [(5, 4, 0, 4), (0, 4, -1, 4)])
def test_counts_outside_their_trials_are_an_error(case):
    with pytest.raises(ValueError, match="events"):
        fisher_exact(*case)


def placings(events_a, trials_a, events_b, trials_b):
    """How many of the events fall to arm a, for every way to place them."""
    events = combinations(range(trials_a + trials_b), events_a + events_b)
    return [sum(place < trials_a for place in placing) for placing in events]


@pytest.mark.parametrize("strata", [[(2, 3, 1, 4), (1, 4, 0, 2)], [(0, 3, 4, 4), (0, 2, 0, 5), (1, 2, 2, 3)]])
def test_strata_by_enumeration(strata):
    # Each stratum's events are placed among its own trials alone; all combinations of placings are equally likely.
    totals = [sum(placed) for placed in product(*(placings(*stratum) for stratum in strata))]
    ways = {total: totals.count(total) for total in set(totals)}
    seen = sum(events_a for events_a, *_ in strata)
    expected = sum(way for way in ways.values() if way <= ways[seen]) / len(totals)
    assert stratified_fisher_exact(strata) == expected


def test_one_stratum_is_the_plain_test_and_one_without_events_adds_nothing():
    assert stratified_fisher_exact([(3, 4, 1, 4)]) == fisher_exact(3, 4, 1, 4)
    assert stratified_fisher_exact([(3, 4, 1, 4), (0, 9, 0, 30)]) == fisher_exact(3, 4, 1, 4)
    assert stratified_fisher_exact([]) == 1.0


def test_strata_keep_their_own_rates():
    # One prompt always moves and the others never do, alone as under load: pooled, that looks like load.
    strata = [(2, 2, 20, 20), (0, 20, 0, 2)]
    assert stratified_fisher_exact(strata) == 1.0
    assert fisher_exact(2, 22, 20, 22) < 1e-6


def test_strata_outside_their_trials_are_an_error():
    with pytest.raises(ValueError, match="events"):
        stratified_fisher_exact([(0, 1, 0, 1), (2, 1, 0, 4)])


def test_hundreds_of_trials_in_each_stratum_give_what_whole_numbers_give():
    strata = [(30, 300, 80, 400), (5, 300, 90, 2000), (150, 300, 200, 400)]
    ways = [1]
    for events_a, trials_a, events_b, trials_b in strata:
        total = events_a + events_b
        own = [comb(trials_a, in_a) * comb(trials_b, total - in_a) for in_a in range(total + 1)]
        ways = [
            sum(ways[first] * own[whole - first] for first in range(len(ways)) if 0 <= whole - first < len(own))
            for whole in range(len(ways) + len(own) - 1)
        ]
    seen = ways[sum(events_a for events_a, *_ in strata)]
    exact = Fraction(sum(way for way in ways if way <= seen), sum(ways))
    assert stratified_fisher_exact(strata) == pytest.approx(float(exact), rel=2**-50)  # A float of a 256-bit quotient.
