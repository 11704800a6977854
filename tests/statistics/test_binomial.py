from fractions import Fraction

import pytest

from detharness.statistics.binomial import binomial_upper_tail


def test_the_tail_of_a_fair_coin():
    assert binomial_upper_tail(0, 4, Fraction(1, 2)) == 1.0
    assert binomial_upper_tail(3, 4, Fraction(1, 2)) == 5 / 16
    assert binomial_upper_tail(198, 198, Fraction(1, 4)) == pytest.approx(4.0**-198)


def test_counts_and_rates_outside_their_range_are_refused():
    with pytest.raises(ValueError, match="events must lie"):
        binomial_upper_tail(5, 4, Fraction(1, 2))
    with pytest.raises(ValueError, match="rate must lie"):
        binomial_upper_tail(1, 4, Fraction(3, 2))
