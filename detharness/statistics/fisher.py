"""Fisher's exact test: do two arms diverge at different rates?"""

from __future__ import annotations

from collections.abc import Sequence
from math import comb

_KEPT_BITS, _AGREEING_BITS = 256, 128  # Products of whole numbers of trials would otherwise have thousands.


def fisher_exact(events_a: int, trials_a: int, events_b: int, trials_b: int) -> float:
    """Two-sided p-value that two arms share one rate, given ``events`` among ``trials`` in each.

    The sum of the hypergeometric probabilities of all tables with the same margins that are no more likely
    than the one seen (R. A. Fisher, "The logic of inductive inference", 1935; the two-sided rule of R's
    fisher.test). Tables are compared as whole numbers, so ties need no tolerance. ValueError for counts
    outside their trials.
    """
    for events, trials in ((events_a, trials_a), (events_b, trials_b)):
        if not 0 <= events <= trials:
            raise ValueError(f"events must lie between 0 and {trials}, got {events}")
    events = events_a + events_b
    ways = _ways(events, trials_a, trials_b)
    seen = ways[events_a - max(0, events - trials_b)]
    return sum(way for way in ways if way <= seen) / sum(ways)


def stratified_fisher_exact(strata: Sequence[tuple[int, int, int, int]]) -> float:
    """Two-sided p-value that two arms share one rate within every stratum, whatever the strata's own rates are.

    strata: (events_a, trials_a, events_b, trials_b) of each. Given each stratum's margins, the events of arm a in all
    strata together follow a convolution of hypergeometric distributions; the p-value sums the probabilities of all
    totals that are no more likely than the one seen (J. J. Gart, "Point and interval estimation of the common odds
    ratio in the combination of 2 x 2 tables with fixed marginals", Biometrika 57, 1970). With one stratum it is
    ``fisher_exact``. Numbers of more than 256 bits are cut to these, and totals that then agree in 128 bits count as
    equally likely. ValueError for counts outside their trials.
    """
    ways, seen = [1], 0  # ways[k]: in how many ways arm a has ``lowest + k`` events.
    for events_a, trials_a, events_b, trials_b in strata:
        for events, trials in ((events_a, trials_a), (events_b, trials_b)):
            if not 0 <= events <= trials:
                raise ValueError(f"events must lie between 0 and {trials}, got {events}")
        total = events_a + events_b
        ways = _cut(_convolved(ways, _cut(_ways(total, trials_a, trials_b))))
        seen += events_a - max(0, total - trials_b)
    as_likely = ways[seen] + (ways[seen] >> _AGREEING_BITS)
    return sum(way for way in ways if way <= as_likely) / sum(ways)


def _cut(ways: list[int]) -> list[int]:
    """``ways`` without the bits that all of them can spare."""
    spare = max(0, max(ways).bit_length() - _KEPT_BITS)
    return [way >> spare for way in ways]


def _convolved(left: Sequence[int], right: Sequence[int]) -> list[int]:
    result = [0] * (len(left) + len(right) - 1)
    for offset, factor in enumerate(left):
        for index, other in enumerate(right):
            result[offset + index] += factor * other
    return result


def _ways(events: int, trials_a: int, trials_b: int) -> list[int]:
    """In how many ways ``events`` fall on two arms, by how many fall on arm a, from the fewest possible on.

    Each is the one before it times a fraction: building all from binomials takes half a minute at 10,000 trials.
    """
    low, high = max(0, events - trials_b), min(events, trials_a)
    ways = [comb(trials_a, low) * comb(trials_b, events - low)]
    for in_a in range(low, high):
        more = ways[-1] * ((trials_a - in_a) * (events - in_a))
        ways.append(more // ((in_a + 1) * (trials_b - events + in_a + 1)))
    return ways
