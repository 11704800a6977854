"""RMSNorm in fp64, alone and after a residual addition."""

from __future__ import annotations

from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [..., K], weight [K] -> x / sqrt(mean(x²) + eps) * weight, [..., K] fp64."""
    wide = x.double()
    return wide / ((wide * wide).mean(dim=-1, keepdim=True) + eps).sqrt() * weight.double()


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x, residual [..., K] of one dtype -> (rms_norm(s), s), fp64; s = x + residual is rounded to that dtype first.

    The rounding belongs to the operator: s is the residual stream that the next layer reads.
    """
    total = x + residual
    return rms_norm(total, weight, eps), total.double()
