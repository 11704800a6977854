import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detharness.statistics.calibration import drop_last_calibration_error, rms_calibration_error


@pytest.mark.parametrize("answers", [100, 150, 2500])
def test_all_wrong_at_full_confidence_is_an_error_of_one(answers):
    assert rms_calibration_error([(100, False)] * answers) == 1.0


def test_the_published_formula_loses_its_last_bin():
    assert drop_last_calibration_error([(100, False)] * 2500) == pytest.approx(math.sqrt(0.96))
    assert drop_last_calibration_error([(100, False)] * 200) == pytest.approx(math.sqrt(0.5))


def test_what_cannot_be_computed_is_refused():
    with pytest.raises(ValueError, match="at least 100 answers, got 99"):
        rms_calibration_error([(50, True)] * 99)
    with pytest.raises(ValueError, match="below 200 answers, got 199"):
        drop_last_calibration_error([(50, True)] * 199)


def test_a_calibrated_model_has_no_error():
    assert rms_calibration_error([(75, True)] * 150 + [(75, False)] * 50) == 0.0


def test_bins_and_weights():
    low, high = [(20, False)] * 100, [(90, True)] * 150
    # Gaps 0.2 over 100 answers and 0.1 over 150.
    assert rms_calibration_error(low + high) == pytest.approx(math.sqrt((100 * 0.04 + 150 * 0.01) / 250))
    # The 50 left over join the last bin: mean confidence 0.8, all right.
    tail = [(100 - 20, True)] * 100 + [(95, True)] * 50
    assert rms_calibration_error(tail) == pytest.approx((100 * 0.2 + 50 * 0.05) / 150)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 100), st.booleans()), min_size=5, max_size=25), st.randoms())
def test_the_order_of_the_answers_does_not_matter(answers, random):
    shuffled = list(answers)
    random.shuffle(shuffled)
    assert rms_calibration_error(answers, 5) == rms_calibration_error(shuffled, 5)
