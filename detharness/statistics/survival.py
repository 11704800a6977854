"""How far completions stay identical: the survival curve over tokens."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from detharness.statistics.proportions import wilson_interval


@dataclass(frozen=True)
class SurvivalPoint:
    """The curve at one token index (0-based).

    ``at_risk`` trials were identical so far and compared here, ``diverged`` of them part here; ``share`` is
    the estimated share of all trials that is identical through this token, ``low`` to ``high`` its 95 % interval,
    for this token by itself.
    """

    token: int
    at_risk: int
    diverged: int
    share: float
    low: float
    high: float


def survival_curve(trials: Sequence[tuple[int | None, int]]) -> list[SurvivalPoint]:
    """Estimate the share of trials still identical at each token, from (first divergence, compared) pairs.

    ``compared`` is the number of token indices that were compared; a completion that ends where the other
    goes on diverges at that index, which counts as compared.

    A trial that never diverged is right-censored at its length: it counts among those at risk at every
    token that was compared, and says nothing about later ones. The estimate is the product over tokens of
    (1 - diverged / at risk): Kaplan and Meier, "Nonparametric estimation from incomplete observations",
    JASA 53 (1958). A plain share would take short completions for identical ones. The interval is Wilson's for the
    sample size whose binomial variance is Greenwood's: K. J. Rothman, "Estimation of confidence limits for the
    cumulative probability of survival in life table analysis", J. Chronic Dis. 31 (1978); before the first divergence
    that size is the number at risk.

    Returns a point for every token at which a trial diverged and one for the last token compared,
    ascending; the share is 1 before the first and constant in between. Empty when nothing was compared.
    ValueError when a first divergence is not among the tokens compared.
    """
    for first, compared in trials:
        if compared < 0 or (first is not None and not 0 <= first < compared):
            raise ValueError(f"first divergence {first} does not lie among {compared} compared tokens")
    last = max((compared for _, compared in trials), default=0) - 1
    if last < 0:
        return []
    ends = sorted(compared if first is None else first + 1 for first, compared in trials)
    events = Counter(first for first, _ in trials if first is not None)
    points = []
    share, spread = 1.0, 0.0  # spread: Greenwood's sum of d / (r (r - d)), times share: finite where share is 0.
    for token in sorted({*events, last}):
        at_risk = len(ends) - bisect_right(ends, token)
        diverged = events[token]
        if diverged:
            spread = spread * (1 - diverged / at_risk) + share * diverged / at_risk**2
            share *= 1 - diverged / at_risk
        size = max((1 - share) / spread, 1.0) if spread else at_risk  # Never below one trial but by rounding.
        low, high = wilson_interval((1 - share) * size, size)
        points.append(SurvivalPoint(token, at_risk, diverged, share, 1 - high, 1 - low))
    return points
