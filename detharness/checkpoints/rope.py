"""Inverse frequencies of the rotary embedding, the same bits on every machine.

Powers and logarithms come from ``decimal`` and are rounded to fp32 or fp64 once; everything else is single IEEE
operations. No libm or torch transcendental stands on this path, because those differ between machines and between
the vector body and the scalar tail of one call. The order of operations is that of transformers'
``ROPE_INIT_FUNCTIONS``, so that both give the same table up to the error of its ``pow``.
"""

from __future__ import annotations

import math
from decimal import Context, Decimal

import numpy as np
import torch
from numpy.typing import NDArray

from detharness.checkpoints.config import ModelConfig, RopeConfig

# Far beyond fp64, so that rounding the result once more is rounding the true value (but for ties of 2^-100).
_CONTEXT = Context(prec=50)
_ONE = np.float32(1.0)
Float32Array = NDArray[np.float32]


def inverse_frequencies(config: ModelConfig) -> tuple[torch.Tensor, float]:
    """Return ``(inv_freq, attention_scale)``: fp32 [head_dim / 2], and the factor on cosine and sine.

    Pair i of a head turns by ``position * inv_freq[i]``. Kinds: default; linear (Chen et al., arXiv 2306.15595);
    llama3 (Llama 3.1 release); yarn (Peng et al., arXiv 2309.00071). ``attention_scale`` is 1.0 except for yarn.
    """
    rope = config.rope
    powers = _powers(rope.theta, config.head_dim)
    frequencies = _ONE / powers
    scale = 1.0
    if rope.kind == "linear":
        frequencies = frequencies / np.float32(_given(rope.factor))
    elif rope.kind == "llama3":
        frequencies = _llama3(rope, frequencies)
    elif rope.kind == "yarn":
        frequencies = _yarn(rope, powers, config.head_dim)
        scale = _yarn_attention_scale(rope)
    return torch.from_numpy(np.ascontiguousarray(frequencies, dtype=np.float32)), scale


def _powers(theta: float, dim: int) -> Float32Array:
    """theta ** (2i / dim) for i < dim/2, correctly rounded; base and exponent are fp32 numbers, as in transformers."""
    base = Decimal(float(np.float32(theta)))
    exponents = np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim)
    values = [_round_to_fp32(_CONTEXT.power(base, Decimal(float(exponent)))) for exponent in exponents]
    return np.array(values, dtype=np.float32)


def _round_to_fp32(value: Decimal) -> np.float32:
    """Round to the nearest fp32 in one step: going through fp64 alone could round twice."""
    near = np.float32(float(value))
    candidates = (np.nextafter(near, np.float32(-np.inf)), near, np.nextafter(near, np.float32(np.inf)))
    return min(candidates, key=lambda candidate: abs(Decimal(float(candidate)) - value))


def _llama3(rope: RopeConfig, frequencies: Float32Array) -> Float32Array:
    factor = np.float32(_given(rope.factor))
    low, high = _given(rope.low_freq_factor), _given(rope.high_freq_factor)
    original = float(_given(rope.original_max_positions))
    wavelengths = _ONE / frequencies * np.float32(2 * math.pi)
    long = wavelengths > np.float32(original / low)
    short = wavelengths < np.float32(original / high)
    scaled = np.where(long, frequencies / factor, frequencies)
    smooth = (_ONE / wavelengths * np.float32(original) - np.float32(low)) / np.float32(high - low)
    smoothed = (_ONE - smooth) * scaled / factor + smooth * scaled
    result: Float32Array = np.where(~long & ~short, smoothed, scaled)
    return result


def _yarn(rope: RopeConfig, powers: Float32Array, dim: int) -> Float32Array:
    extrapolation = _ONE / powers
    interpolation = _ONE / (np.float32(_given(rope.factor)) * powers)
    low, high = _yarn_range(rope, dim)
    if low == high:
        high += 0.001  # As published: keeps the ramp finite.
    ramp = (np.arange(dim // 2, dtype=np.float32) - np.float32(low)) / np.float32(high - low)
    keep = _ONE - np.clip(ramp, np.float32(0), _ONE)
    result: Float32Array = interpolation * (_ONE - keep) + extrapolation * keep
    return result


def _yarn_range(rope: RopeConfig, dim: int) -> tuple[float, float]:
    """The pairs between which yarn blends; pairs that turn more often than ``beta_fast`` are kept as they are."""

    def pair(rotations: float) -> Decimal:
        ratio = _given(rope.original_max_positions) / (rotations * 2 * math.pi)
        logarithms = _CONTEXT.divide(_CONTEXT.ln(Decimal(ratio)), _CONTEXT.ln(Decimal(rope.theta)))
        return _CONTEXT.multiply(Decimal(dim) / 2, logarithms)

    first, last = pair(_given(rope.beta_fast)), pair(_given(rope.beta_slow))
    low, high = (math.floor(first), math.ceil(last)) if rope.truncate else (float(first), float(last))
    return max(low, 0), min(high, dim - 1)


def _yarn_attention_scale(rope: RopeConfig) -> float:
    if rope.attention_factor is not None:
        return rope.attention_factor
    factor = _given(rope.factor)
    if rope.mscale and rope.mscale_all_dim:
        return _mscale(factor, rope.mscale) / _mscale(factor, rope.mscale_all_dim)
    return _mscale(factor, 1.0)


def _mscale(factor: float, weight: float) -> float:
    if factor <= 1:
        return 1.0
    return 0.1 * weight * float(_CONTEXT.ln(Decimal(factor))) + 1.0


def _given(value: float | None) -> float:
    """Narrow a field that the parsers always fill for this kind of scaling."""
    if value is None:
        raise ValueError("this kind of rope scaling needs a field that the config does not hold")
    return value
