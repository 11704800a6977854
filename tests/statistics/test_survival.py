"""The survival curve against a published one, by hand, and at its edges."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detharness.statistics.proportions import wilson_interval
from detharness.statistics.survival import survival_curve

# Weeks in remission under 6-mercaptopurine (Freireich et al., Blood 21, 1963), the textbook Kaplan-Meier example;
# the second list was censored at that week, so it was still at risk in it: the length is one more.
RELAPSED = [6, 6, 6, 7, 10, 13, 16, 22, 23]
CENSORED = [6, 9, 10, 11, 17, 19, 20, 25, 32, 32, 34, 35]


def shares(trials):
    return [(point.token, point.at_risk, point.diverged, point.share) for point in survival_curve(trials)]


def test_published_curve():
    points = shares([(week, week + 1) for week in RELAPSED] + [(None, week + 1) for week in CENSORED])
    assert [(*point, round(share, 3)) for *point, share in points] == [
        (6, 21, 3, 0.857),
        (7, 17, 1, 0.807),
        (10, 15, 1, 0.753),
        (13, 12, 1, 0.690),
        (16, 11, 1, 0.627),
        (22, 7, 1, 0.538),
        (23, 6, 1, 0.448),
        (35, 1, 0, 0.448),
    ]


def test_a_short_identical_trial_says_nothing_about_later_tokens():
    # Two trials end after two tokens; of the two that go on, one parts at token 5.
    assert shares([(None, 2), (None, 2), (5, 8), (None, 8)]) == [(5, 2, 1, 0.5), (7, 1, 0, 0.5)]


def test_edges():
    assert survival_curve([]) == []
    assert survival_curve([(None, 0)]) == []
    assert shares([(None, 4), (None, 3)]) == [(3, 1, 0, 1.0)]
    assert shares([(0, 4)]) == [(0, 1, 1, 0.0), (3, 0, 0, 0.0)]


@given(st.lists(st.integers(0, 20), min_size=1))
def test_without_censoring_it_is_the_plain_share(firsts):
    points = survival_curve([(first, 21) for first in firsts])
    for point in points:
        # One rounding for each factor of the product, at most 21 of them.
        plain = sum(first > point.token for first in firsts) / len(firsts)
        assert point.share == pytest.approx(plain, abs=1e-14)


@given(st.lists(st.integers(0, 20), min_size=1))
def test_without_censoring_the_interval_is_that_of_the_plain_share(firsts):
    for point in survival_curve([(first, 21) for first in firsts]):
        kept = sum(first > point.token for first in firsts)
        # The size is rebuilt from a product and a sum of at most 21 terms; small shares magnify their rounding.
        assert (point.low, point.high) == pytest.approx(wilson_interval(kept, len(firsts)), abs=1e-9)


def test_an_interval_under_censoring_rests_on_greenwoods_size():
    # 21 at risk, 3 part; 17 at risk, 1 parts. Greenwood: 3/(21*18) + 1/(17*16); share 18/21 * 16/17 = 288/357.
    share, total = 288 / 357, 3 / (21 * 18) + 1 / (17 * 16)
    size = (1 - share) / (share * total)
    point = survival_curve([(week, week + 1) for week in RELAPSED] + [(None, week + 1) for week in CENSORED])[1]
    low, high = wilson_interval(share * size, size)
    assert (point.low, point.high) == pytest.approx((low, high), abs=1e-12)
    assert 20 < size < 21  # One trial was censored before the second divergence.


def test_the_bound_where_nothing_parted_rests_on_those_still_compared():
    (point,) = survival_curve([(None, 4)] * 30 + [(None, 2)] * 70)
    assert (point.at_risk, point.high) == (30, 1.0)
    assert point.low == pytest.approx(1 - wilson_interval(0, 30)[1])


@given(st.lists(st.tuples(st.one_of(st.none(), st.integers(0, 9)), st.integers(10, 14)), min_size=1))
def test_the_interval_holds_the_share_and_the_share_only_falls(trials):
    points = survival_curve(trials)
    assert all(0 <= point.low <= point.share <= point.high <= 1 for point in points)
    shares_in_order = [point.share for point in points]
    assert shares_in_order == sorted(shares_in_order, reverse=True)


@pytest.mark.parametrize("trial", [(4, 4), (-1, 4), (None, -1)])
def test_a_divergence_outside_what_was_compared_is_an_error(trial):
    with pytest.raises(ValueError, match="compared"):
        survival_curve([trial])
