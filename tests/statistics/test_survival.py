"""The survival curve against a published one, by hand, and at its edges."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detharness.statistics.survival import SurvivalPoint, survival_curve

# Weeks in remission under 6-mercaptopurine (Freireich et al., Blood 21, 1963), the textbook Kaplan-Meier example;
# the second list was censored at that week, so it was still at risk in it: the length is one more.
RELAPSED = [6, 6, 6, 7, 10, 13, 16, 22, 23]
CENSORED = [6, 9, 10, 11, 17, 19, 20, 25, 32, 32, 34, 35]


def test_published_curve():
    points = survival_curve([(week, week + 1) for week in RELAPSED] + [(None, week + 1) for week in CENSORED])
    assert [(point.token, point.at_risk, point.diverged, round(point.share, 3)) for point in points] == [
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
    assert survival_curve([(None, 2), (None, 2), (5, 8), (None, 8)]) == [
        SurvivalPoint(5, 2, 1, 0.5),
        SurvivalPoint(7, 1, 0, 0.5),
    ]


def test_edges():
    assert survival_curve([]) == []
    assert survival_curve([(None, 0)]) == []
    assert survival_curve([(None, 4), (None, 3)]) == [SurvivalPoint(3, 1, 0, 1.0)]
    assert survival_curve([(0, 4)]) == [SurvivalPoint(0, 1, 1, 0.0), SurvivalPoint(3, 0, 0, 0.0)]


@given(st.lists(st.integers(0, 20), min_size=1))
def test_without_censoring_it_is_the_plain_share(firsts):
    points = survival_curve([(first, 21) for first in firsts])
    for point in points:
        # One rounding for each factor of the product, at most 21 of them.
        plain = sum(first > point.token for first in firsts) / len(firsts)
        assert point.share == pytest.approx(plain, abs=1e-14)


@pytest.mark.parametrize("trial", [(4, 4), (-1, 4), (None, -1)])
def test_a_divergence_outside_what_was_compared_is_an_error(trial):
    with pytest.raises(ValueError, match="compared"):
        survival_curve([trial])
