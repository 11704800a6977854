"""What k draws would have scored, from n >= k samples of one task: pass@k and maj@k."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import comb


def pass_at_k(samples: int, correct: int, k: int) -> Fraction:
    """Chance that at least one of ``k`` of the samples, drawn without replacement, is correct: 1 - C(n-c, k) / C(n, k).

    Unbiased for the pass@k of the model: M. Chen et al., "Evaluating large language models trained on code", 2021,
    section 2.1. Exact. ValueError when there are fewer than k samples: the estimator is not defined there, neither
    0 nor 1.
    """
    _check(samples, k)
    if not 0 <= correct <= samples:
        raise ValueError(f"correct must lie between 0 and {samples}, got {correct}")
    return 1 - Fraction(comb(samples - correct, k), comb(samples, k))


def maj_at_k(votes: Sequence[int], correct: int | None, abstentions: int, k: int) -> Fraction:
    """Expected credit of a plurality vote among ``k`` of the samples, drawn without replacement.

    votes: samples for each distinct answer. correct: index into ``votes`` of the right answer, None if nobody gave
    it. abstentions: samples without an answer; they are drawn but do not vote. Ties: t answers share the most
    votes, the credit is 1/t if the right one is among them; no vote, no credit. k = 1 gives the share of correct
    samples, k = n the vote of all. Exact, by counting subsets: for each number v of votes of the right answer, a
    polynomial over the other answers counts the ways in which none gets more than v and t - 1 get v. ValueError
    when there are fewer than k samples.
    """
    samples = sum(votes) + abstentions
    _check(samples, k)
    if correct is None:
        return Fraction(0)
    if k == samples:  # One subset; counting it as below would take minutes where there are a thousand samples.
        most = max(votes)
        return Fraction(0 < votes[correct] == most, votes.count(most))
    others = [count for index, count in enumerate(votes) if index != correct]
    credit = Fraction(0)
    for winning in range(1, min(votes[correct], k) + 1):
        ways = comb(votes[correct], winning)
        for (drawn, ties), count in _ways_below(others, winning, k - winning).items():
            rest = k - winning - drawn
            credit += Fraction(ways * count * comb(abstentions, rest), ties + 1)
    return credit / comb(samples, k)


def _ways_below(counts: Sequence[int], most: int, draws: int) -> dict[tuple[int, int], int]:
    """(votes drawn, answers with exactly ``most``) -> ways to draw from ``counts``, none above ``most``."""
    ways = {(0, 0): 1}
    for count in counts:
        grown: dict[tuple[int, int], int] = {}
        for (drawn, ties), before in ways.items():
            for taken in range(min(count, most, draws - drawn) + 1):
                key = drawn + taken, ties + (taken == most)
                grown[key] = grown.get(key, 0) + before * comb(count, taken)
        ways = grown
    return ways


def _check(samples: int, k: int) -> None:
    if not 1 <= k <= samples:
        raise ValueError(f"k must lie between 1 and the {samples} samples, got {k}")
