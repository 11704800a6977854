"""What a number of events among a number of trials says about the rate behind it.

Every bound here takes the trials as independent draws from one rate. Trials that share a prompt are not quite
that: read a bound over them as one for this mix of prompts.
"""

from __future__ import annotations

import math
from statistics import NormalDist


def wilson_interval(events: float, trials: float, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval (low, high) for a rate, two-sided, without continuity correction.

    (p + z²/2n ± z sqrt(p(1-p)/n + z²/4n²)) / (1 + z²/n). Chosen because it keeps its coverage near 0 and 1,
    where reproducibility lives. E. B. Wilson, "Probable inference, the law of succession, and statistical
    inference", JASA 22 (1927). Counts may be fractions: an effective sample size is one. ValueError without trials or
    for a count outside them.
    """
    _check(events, trials, confidence)
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    rate = events / trials
    centre = rate + z * z / (2 * trials)
    spread = z * math.sqrt(rate * (1 - rate) / trials + z * z / (4 * trials * trials))
    scale = 1 + z * z / trials
    # At 0 and n events one end is exactly 0 or 1; the difference of equal terms may miss it by an ulp.
    low = 0.0 if events == 0 else (centre - spread) / scale
    high = 1.0 if events == trials else (centre + spread) / scale
    return low, high


def zero_event_upper_bound(trials: int, confidence: float = 0.95) -> float:
    """Exact one-sided upper bound on a rate when n trials saw no event: 1 - (1 - confidence)^(1/n).

    It is the rate at which seeing no event has probability 1 - confidence, hence the Clopper-Pearson bound
    for zero events (Biometrika 26, 1934). The "rule of three", 3/n, is its first-order form at 95 % (-ln
    0.05 = 2.996; Hanley and Lippman-Hand, JAMA 249, 1983) and is always the larger. ValueError without
    trials.
    """
    _check(0, trials, confidence)
    return -math.expm1(math.log1p(-confidence) / trials)


def _check(events: float, trials: float, confidence: float) -> None:
    if trials < 1:
        raise ValueError(f"a rate needs at least one trial, got {trials}")
    if not 0 <= events <= trials:
        raise ValueError(f"events must lie between 0 and {trials}, got {events}")
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence must lie between 0 and 1, got {confidence}")
