"""The binomial distribution's upper tail."""

from __future__ import annotations

from fractions import Fraction
from math import comb


def binomial_upper_tail(events: int, trials: int, rate: Fraction) -> float:
    """Chance of at least ``events`` among independent ``trials`` of chance ``rate`` each; summed exactly.

    ValueError for counts outside their trials or a rate outside 0 to 1.
    """
    if not 0 <= events <= trials:
        raise ValueError(f"events must lie between 0 and {trials}, got {events}")
    if not 0 <= rate <= 1:
        raise ValueError(f"rate must lie between 0 and 1, got {rate}")
    hits, misses = rate.numerator, rate.denominator - rate.numerator
    ways = sum(comb(trials, seen) * hits**seen * misses ** (trials - seen) for seen in range(events, trials + 1))
    return float(Fraction(ways, rate.denominator**trials))
