"""exp, log, sqrt, sin, cos and tree sums from plain IEEE operations: the same bits for any length, place or threads.

Several of torch's own functions (sigmoid, silu, softplus, pow) use one polynomial in the vector body and another in the
scalar tail, so a value depends on where it stands; which ones do is the build's affair. Here only correctly rounded
operations are used (add, subtract, multiply, divide, round, compare, select, bit views), one at a time: no ``alpha=``,
no addcmul, nothing that may fuse in the body alone.

Subnormal results of ``exp32`` are flushed to zero by an explicit select; no other operation here produces them from
the inputs it is called with.
"""

from __future__ import annotations

import math
from decimal import Context, Decimal, localcontext

import torch
from torch import Tensor
from torch.nn.functional import pad

from detharness.kernels.contract import ReductionPlan

# High parts have trailing zero bits, so that k * HIGH is exact for every k that occurs (Cody and Waite, 1980). The
# constants are computed in 60 digits, in a context of our own: the caller's decimal settings cannot move a bit.
with localcontext(Context(prec=60)):
    _LN2 = Decimal(2).ln()
    _LOG2E = float(1 / _LN2)
    _LN2_HIGH32 = 0.693359375  # 355 / 512
    _LN2_LOW32 = float(_LN2 - Decimal(_LN2_HIGH32))
    _LN2_HIGH64 = math.ldexp(math.floor(math.ldexp(float(_LN2), 32)), -32)
    _LN2_LOW64 = float(_LN2 - Decimal(_LN2_HIGH64))

    _HALF_PI = Decimal("1.57079632679489661923132169163975144209858469968755291")
    _TWO_OVER_PI = float(1 / _HALF_PI)
    _HALF_PI_PARTS = []
    _rest = _HALF_PI
    for _bits in (32, 64, 96):
        # The first parts carry 32 bits each: k * part is exact for k below 2^21.
        _part = math.ldexp(float((_rest * 2**_bits).to_integral_value("ROUND_FLOOR")), -_bits)
        _HALF_PI_PARTS.append(_part)
        _rest -= Decimal(_part)
    del _rest, _bits, _part

TRIG_LIMIT = 2.0e6
"""Largest |x| that ``sin64`` and ``cos64`` reduce exactly enough; beyond it they raise."""

_PIECE = 1 << 16  # Elements of exp32 worked on at once, so that its temporaries stay in cache: schedule.

# Taylor coefficients from r² on; the first term left out is far below half an ulp for |r| up to ln2/2.
_EXP32 = tuple(1.0 / math.factorial(n) for n in range(2, 9))
_EXP64 = tuple(1.0 / math.factorial(n) for n in range(2, 15))
_SIN = tuple((-1) ** n / math.factorial(2 * n + 1) for n in range(1, 10))
_COS = tuple((-1) ** n / math.factorial(2 * n) for n in range(1, 11))


def _horner(x: Tensor, coefficients: tuple[float, ...]) -> Tensor:
    total = torch.full_like(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total.mul_(x).add_(coefficient)
    return total


def exp32(x: Tensor) -> Tensor:
    """exp of fp32, within 1 ulp where the result is normal; exp(0) is 1, exp(-inf) and anything below 2^-126 is 0."""
    if x.numel() <= _PIECE:
        return _exp32(x)
    result = torch.empty_like(x, memory_format=torch.contiguous_format)
    pieces = torch.split(x.reshape(-1), _PIECE)
    for piece, part in zip(pieces, torch.split(result.view(-1), _PIECE), strict=True):
        part.copy_(_exp32(piece))
    return result


def _exp32(x: Tensor) -> Tensor:
    k = x.clamp(-104.0, 89.0).mul_(_LOG2E).round_()
    r = (x - k * _LN2_HIGH32).sub_(k * _LN2_LOW32)
    result = _horner(r, _EXP32).mul_(r * r).add_(r).add_(1.0)
    power = k.nan_to_num_(0.0).to(torch.int32)
    # Two factors, because 2^128 is not an fp32 although mantissa * 2^128 may be.
    half = power >> 1
    result.mul_(((half + 127) << 23).view(torch.float32))
    result.mul_(((power - half + 127) << 23).view(torch.float32))
    result.masked_fill_(x < -87.33654, 0.0)
    result.masked_fill_(x > 88.722839, math.inf)
    return torch.where(x == x, result, x)


def exp64(x: Tensor) -> Tensor:
    """exp of fp64, within 2 ulp for results from 2^-1022 to the largest; below it is 0, exp(0) is 1."""
    k = torch.round(x.clamp(-746.0, 711.0) * _LOG2E)
    r = (x - k * _LN2_HIGH64) - k * _LN2_LOW64
    mantissa = (_horner(r, _EXP64) * (r * r) + r) + 1.0
    power = k.nan_to_num(0.0).to(torch.int64)
    half = power >> 1
    scale_a = ((half + 1023) << 52).view(torch.float64)
    scale_b = ((power - half + 1023) << 52).view(torch.float64)
    result = mantissa * scale_a * scale_b
    result = torch.where(x < -708.396418532264, 0.0, result)
    result = torch.where(x > 709.782712893384, math.inf, result)
    return torch.where(x == x, result, x)


def log64(x: Tensor) -> Tensor:
    """Natural logarithm of fp64 for 0, normal positives and inf, within 2 ulp; negative gives NaN."""
    bits = x.view(torch.int64)
    exponent = ((bits >> 52) & 0x7FF) - 1023
    mantissa = ((bits & 0xFFFFFFFFFFFFF) | (1023 << 52)).view(torch.float64)
    high = mantissa > 1.4142135623730951
    mantissa = torch.where(high, mantissa * 0.5, mantissa)
    k = (exponent + high.to(torch.int64)).to(torch.float64)
    # log(m) = 2 artanh(s), s = (m - 1) / (m + 1), |s| below 0.1716; the series is cut far below an ulp.
    s = (mantissa - 1.0) / (mantissa + 1.0)
    square = s * s
    series = _horner(square, tuple(2.0 / (2 * n + 1) for n in range(1, 14)))
    result = k * _LN2_HIGH64 + (2.0 * s + (s * (square * series) + k * _LN2_LOW64))
    result = torch.where(x == 0, -math.inf, result)
    result = torch.where(x == math.inf, x, result)
    return torch.where(x >= 0, result, math.nan)


def sqrt32(x: Tensor) -> Tensor:
    """Square root of fp32, correctly rounded; negative gives NaN.

    torch.sqrt may be a vector library that is not correctly rounded (MKL: 0.55 ulp in fp32, 0.72 in fp64), so its bits
    belong to one build and one CPU. For x in [1, 4) the root is at least 2^-50 from the middle of two fp32 numbers; an
    fp64 root within one ulp (2^-52) lies on the right side of it, so rounding it to fp32 gives the correct one.
    """
    return torch.sqrt(x.double()).float()


def _quadrant(x: Tensor) -> tuple[Tensor, Tensor]:
    if bool((x.abs() > TRIG_LIMIT).any()):
        raise ValueError(f"angles beyond {TRIG_LIMIT:g} are not reduced exactly")
    k = torch.round(x * _TWO_OVER_PI)
    r = x
    for part in _HALF_PI_PARTS:
        r = r - k * part
    return k.to(torch.int64) & 3, r


def _sin_cos(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    quadrant, r = _quadrant(x)
    square = r * r
    return quadrant, r + r * (square * _horner(square, _SIN)), 1.0 + square * _horner(square, _COS)


def sin64(x: Tensor) -> Tensor:
    """sin of fp64 for |x| up to ``TRIG_LIMIT``, absolute error below 1e-15."""
    quadrant, sine, cosine = _sin_cos(x)
    value = torch.where((quadrant & 1) == 0, sine, cosine)
    return torch.where(quadrant >= 2, -value, value)


def cos64(x: Tensor) -> Tensor:
    """cos of fp64 for |x| up to ``TRIG_LIMIT``, absolute error below 1e-15."""
    quadrant, sine, cosine = _sin_cos(x)
    value = torch.where((quadrant & 1) == 0, cosine, sine)
    return torch.where((quadrant == 1) | (quadrant == 2), -value, value)


def pairwise_sum(partials: Tensor) -> Tensor:
    """Sum along dim 0, whose size is a power of two, as ((p0+p1)+(p2+p3))+...: the merge of every tree plan."""
    while partials.shape[0] > 1:
        partials = partials[0::2] + partials[1::2]
    return partials[0]


def tree_sum(x: Tensor, plan: ReductionPlan) -> Tensor:
    """Sum the last axis of fp32 or fp64 ``x`` by ``plan`` (leaf order "halving"): adds only, no library reduction.

    A leaf is padded with zeros to a power of two and folded in halves; the leaves are merged pairwise. Zero padding
    is an exact no-op, so the sum of a row cannot depend on anything else.
    """
    lead = x.shape[:-1]
    x = pad(x, (0, plan.leaves * plan.leaf_length - plan.length)).reshape(*lead, plan.leaves, plan.leaf_length)
    width = 1 << (plan.leaf_length - 1).bit_length()
    if width != plan.leaf_length:
        x = pad(x, (0, width - plan.leaf_length))
    while width > 1:
        width //= 2
        x = x[..., :width] + x[..., width:]
    return pairwise_sum(x[..., 0].movedim(-1, 0))
