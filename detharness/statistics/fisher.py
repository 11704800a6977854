"""Fisher's exact test: do two arms diverge at different rates?"""

from __future__ import annotations

from math import comb


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
    ways = [
        comb(trials_a, in_a) * comb(trials_b, events - in_a)
        for in_a in range(max(0, events - trials_b), min(events, trials_a) + 1)
    ]
    seen = comb(trials_a, events_a) * comb(trials_b, events_b)
    return sum(way for way in ways if way <= seen) / comb(trials_a + trials_b, events)
