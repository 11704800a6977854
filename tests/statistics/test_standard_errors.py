import math
import statistics
from fractions import Fraction

import pytest

from detharness.statistics.standard_errors import between_tasks, within_tasks


def test_between_tasks_is_the_standard_error_of_the_mean():
    means = [Fraction(1, 4), Fraction(1, 2), Fraction(1), Fraction(0)]
    assert between_tasks(means) == pytest.approx(statistics.stdev(map(float, means)) / 2, rel=1e-12)


@pytest.mark.parametrize(
    ("tasks", "samples", "share", "points"),
    [(30, 32, Fraction(1, 2), 1.61), (30, 32, Fraction(9, 10), 0.97), (198, 8, Fraction(4, 5), 1.00)],
)
def test_within_tasks_estimates_the_noise_of_the_benchmarks_without_bias(tasks, samples, share, points):
    variance = sum(
        math.comb(samples, right)
        * share**right
        * (1 - share) ** (samples - right)
        * within_tasks([right], samples) ** 2
        for right in range(samples + 1)
    )
    assert variance == pytest.approx(float(share * (1 - share) / samples), rel=1e-12)
    assert 100 * math.sqrt(variance / tasks) == pytest.approx(points, abs=0.006)


def test_tasks_that_never_vary_have_no_sampling_noise():
    assert within_tasks([0, 8, 8], 8) == 0.0


def test_one_sample_or_one_task_is_no_number():
    with pytest.raises(ValueError, match="needs two samples of a task, got 1"):
        within_tasks([1, 0], 1)
    with pytest.raises(ValueError, match="of 0 tasks"):
        within_tasks([], 8)
    with pytest.raises(ValueError, match="at least two, got 1"):
        between_tasks([Fraction(1)])
    with pytest.raises(ValueError, match="correct must lie between 0 and 8"):
        within_tasks([9], 8)
