"""Two runs over the same tasks: could chance alone part them, and how large a difference would have been seen?"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from statistics import NormalDist

_EXACT_WORK = 4_000_000_000  # Bytes moved by the exact count: about a second. Equal sample counts stay far below.


@dataclass(frozen=True)
class SignFlipTest:
    """``p_value`` that the two sides of every task could be exchanged; ``exact``, or from ``draws`` random exchanges.

    ``tasks``: how many differ at all. Only they can speak.
    """

    p_value: float
    exact: bool
    draws: int | None
    tasks: int


def sign_flip_test(differences: Sequence[Fraction], *, draws: int = 10_000, seed: int = 0) -> SignFlipTest:
    """Two-sided paired permutation test on task-level ``differences``, with their sum as the statistic.

    If nothing but chance parts two runs, each task's difference is as likely to have the other sign: the p-value is the
    share of the 2^k choices of signs whose sum is at least as far from 0 as the one seen. R. A. Fisher, "The Design of
    Experiments" (1935), section 21. All choices are counted as whole numbers, so ties need no tolerance; where the
    differences have too many denominators for that, ``draws`` choices from ``seed`` stand in, with (b + 1)/(m + 1)
    (Phipson and Smyth, "Permutation p-values should never be zero", 2010). For differences of -1, 0 and 1 it is
    McNemar's exact test. No differences: p = 1.
    """
    told = [difference for difference in differences if difference]
    if not told:
        return SignFlipTest(1.0, True, None, 0)
    scale = math.lcm(*(difference.denominator for difference in told))
    scaled = [int(difference * scale) for difference in told]
    divisor = math.gcd(*scaled)
    sizes = sorted(abs(value) // divisor for value in scaled)
    seen = abs(sum(scaled)) // divisor
    width = len(sizes) // 8 + 1  # Bytes for a count of up to 2^k.
    if len(sizes) * (sum(sizes) + 1) * width <= _EXACT_WORK:
        p_value = _far_choices(sizes, seen, width) / 2 ** len(sizes)
        return SignFlipTest(p_value, True, None, len(sizes))
    generator = random.Random(seed)
    far = 0
    for _ in range(draws):
        bits = generator.getrandbits(len(sizes))
        far += abs(sum(size if bits >> index & 1 else -size for index, size in enumerate(sizes))) >= seen
    return SignFlipTest((far + 1) / (draws + 1), False, draws, len(sizes))


def _far_choices(sizes: Sequence[int], seen: int, width: int) -> int:
    """How many choices of signs give a sum of ``sizes`` at least ``seen`` away from 0.

    The product of (1 + x^size) has the number of subsets with sum s as its coefficient of x^s; it is held as one
    integer with ``width`` bytes for each coefficient. A subset of sum s is the signed sum 2s - total.
    """
    if seen == 0:
        return int(2 ** len(sizes))
    product = 1
    for size in sizes:
        product += product << (8 * width * size)
    total = sum(sizes)
    coefficients = product.to_bytes((total + 1) * width, "little")
    low = sum(
        int.from_bytes(coefficients[at * width : (at + 1) * width], "little") for at in range((total - seen) // 2 + 1)
    )
    return 2 * low  # The other tail is its mirror image.


def detectable_effect(standard_error: float, *, alpha: float = 0.05, power: float = 0.8) -> float:
    """The smallest true difference that a two-sided test at ``alpha`` would find with probability ``power``.

    (z_{1 - alpha/2} + z_power) x standard error, by the normal approximation (E. Miller, "Adding error bars to evals",
    2024, section 5).
    """
    normal = NormalDist()
    return (normal.inv_cdf(1 - alpha / 2) + normal.inv_cdf(power)) * standard_error
