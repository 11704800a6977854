"""``two_sided``: a check must pass on the sound side and catch the faulty one."""

from __future__ import annotations

import pytest

from detharness.testing import Normal, NothingComparedError, assert_row_pure, two_sided


def at_most_three(value):
    assert value <= 3


def test_a_check_that_tells_the_sides_apart_passes_and_gives_what_it_caught():
    assert isinstance(two_sided(sound=3, faulty=4, check=at_most_three), AssertionError)


def test_a_check_that_catches_nothing_fails():
    with pytest.raises(AssertionError, match="proves nothing"):
        two_sided(sound=2, faulty=3, check=at_most_three)


def test_a_check_that_the_sound_side_fails_fails():
    with pytest.raises(AssertionError, match="4 <= 3"):
        two_sided(sound=4, faulty=5, check=at_most_three)


def test_a_faulty_side_of_which_nothing_was_compared_was_not_caught():
    with pytest.raises(NothingComparedError):
        two_sided(
            sound=lambda x: x, faulty=lambda x: x[:, :0], check=lambda fn: assert_row_pure(fn, rows={"x": Normal(3)})
        )


def test_a_crash_is_no_catch():
    with pytest.raises(TypeError):
        two_sided(sound=1, faulty="x", check=at_most_three)
