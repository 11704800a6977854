"""Standard errors of a mean over tasks, each of which was answered several times.

Two questions, two numbers: how far the score would move on other tasks of the same kind, and how far it would move
on these tasks if the model answered them again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction


def between_tasks(task_means: Sequence[Fraction]) -> float:
    """Standard deviation of the task means (divisor tasks - 1) over the root of the number of tasks.

    The samples of a task are one cluster, so this is the clustered standard error: E. Miller, "Adding error bars to
    evals", 2024, with clusters of equal size. ValueError below two tasks.
    """
    tasks = len(task_means)
    if tasks < 2:
        raise ValueError(f"the spread between tasks needs at least two, got {tasks}")
    mean = sum(task_means, Fraction(0)) / tasks
    squares = sum(((value - mean) ** 2 for value in task_means), Fraction(0))
    return math.sqrt(squares / (tasks - 1) / tasks)


def within_tasks(correct: Sequence[int], samples: int) -> float:
    """Standard error of the mean score from sampling alone, the tasks held fixed: sqrt(sum p(1-p)/(n-1)) / tasks.

    correct: right samples of each task, of ``samples`` each. p(1-p)/(n-1) is the unbiased estimate of the variance of
    one task's mean (Miller 2024, on resampling answers). ValueError below two samples a task: nothing shows it there.
    """
    if samples < 2 or not correct:
        raise ValueError(f"the spread within tasks needs two samples of a task, got {samples} of {len(correct)} tasks")
    for value in correct:
        if not 0 <= value <= samples:
            raise ValueError(f"correct must lie between 0 and {samples}, got {value}")
    total = sum(Fraction(value * (samples - value), samples * samples * (samples - 1)) for value in correct)
    return math.sqrt(total) / len(correct)
