"""Norms, rotary embedding, gating and log-softmax from plain operations: row-pure by construction."""

from __future__ import annotations

import torch
from torch import Tensor

from detharness.kernels.contract import ReductionPlan, tree_plan
from detharness.kernels.elementary import exp32, log64, sqrt32, tree_sum


def norm_plan(length: int) -> ReductionPlan:
    """The tree of a mean of squares over ``length`` elements."""
    return tree_plan("rms_norm", length, "halving")


def softmax_plan(length: int) -> ReductionPlan:
    """The tree of a log-sum-exp over ``length`` logits."""
    return tree_plan("log_softmax", length, "halving")


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [..., K] -> x / sqrt(mean(x²) + eps) * weight in fp32, rounded once to x.dtype."""
    wide = x.float()
    mean = tree_sum(wide * wide, norm_plan(x.shape[-1])) / x.shape[-1]
    scale = 1.0 / sqrt32(mean + eps)
    return (wide * scale[..., None] * weight.float()).to(x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate x [M, H, D] by halves in fp32; cos and sin are [M, D/2]."""
    first, second = x.float().chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """gate_up [M, 2I] -> gate / (1 + exp(-gate)) * up in fp32, rounded once."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    return (gate / (1.0 + exp32(-gate)) * up).to(gate_up.dtype)


def log_softmax(logits: Tensor) -> Tensor:
    """logits [M, V] fp32 -> (x - max) - log(sum(exp(x - max))); the logarithm of one number per row is fp64."""
    shifted = logits - logits.amax(dim=-1, keepdim=True)
    total = tree_sum(exp32(shifted), softmax_plan(logits.shape[-1]))
    return shifted - log64(total.double()).float()[:, None]
