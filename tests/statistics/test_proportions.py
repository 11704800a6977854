"""Intervals against published values and against their own definitions."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detharness.statistics.proportions import wilson_interval, zero_event_upper_bound


@pytest.mark.parametrize(
    ("events", "trials", "low", "high"),
    [
        # R. G. Newcombe, "Two-sided confidence intervals for the single proportion", Stat. Med. 17 (1998),
        # table I, method 3, given to four places.
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0000, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_against_published_values(events, trials, low, high):
    assert [round(end, 4) for end in wilson_interval(events, trials)] == [low, high]


@given(st.integers(1, 10_000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_contains_the_rate_and_mirrors(case):
    events, trials = case
    low, high = wilson_interval(events, trials)
    assert 0.0 <= low <= events / trials <= high <= 1.0
    mirrored = wilson_interval(trials - events, trials)
    # Both ends are sums of a few terms near 1: a few roundings of 2^-53 each.
    assert mirrored == pytest.approx((1 - high, 1 - low), abs=1e-14)


@pytest.mark.parametrize(
    ("trials", "bound"),
    # Exact values that Hanley and Lippman-Hand (JAMA 249, 1983) set beside 3/n, worked out as 1 - 0.05^(1/n).
    [(1, 0.95), (10, 0.2589), (20, 0.1391), (30, 0.0950), (50, 0.0582), (100, 0.0295)],
)
def test_zero_events_against_published_values(trials, bound):
    assert round(zero_event_upper_bound(trials), 4) == bound


@pytest.mark.parametrize("trials", [1, 7, 60, 1000])
@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.99])
def test_zero_events_by_definition(trials, confidence):
    # At the bound, no event in n trials has probability 1 - confidence; exact in fractions. The bound's own
    # rounding (2^-53) is multiplied by n in the power.
    nothing_seen = (1 - Fraction(zero_event_upper_bound(trials, confidence))) ** trials
    assert float(nothing_seen) == pytest.approx(1 - confidence, rel=trials * 1e-15 + 1e-14)


@pytest.mark.parametrize("trials", [1, 3, 100, 10**9])
def test_the_rule_of_three_is_the_larger(trials):
    assert zero_event_upper_bound(trials) < 3 / trials


@pytest.mark.parametrize(("events", "trials"), [(0, 0), (-1, 5), (6, 5)])
def test_no_data_is_an_error(events, trials):
    with pytest.raises(ValueError, match=r"trial|events"):
        wilson_interval(events, trials)


@pytest.mark.parametrize("confidence", [0.0, 1.0, 95])
def test_a_confidence_outside_its_range_is_an_error(confidence):
    with pytest.raises(ValueError, match="confidence"):
        zero_event_upper_bound(10, confidence)
