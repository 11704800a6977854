"""Rotary tables: cos and sin by absolute position, the same bits on every host.

The angle is the fp32 product position x inverse frequency, as transformers computes it (checkpoints were trained
with that rounding); cos and sin of that angle are computed in fp64 by our own plain operations and rounded once
to fp32, because torch's change bits between vector body and scalar tail.
"""

from __future__ import annotations

import torch
from torch import Tensor

from detharness.checkpoints.config import ModelConfig
from detharness.checkpoints.rope import inverse_frequencies
from detharness.kernels.elementary import cos64, sin64


class RotaryTable:
    """Grows by doubling up to the model's context; a row depends on its position only."""

    def __init__(self, config: ModelConfig) -> None:
        self._inverse, self._scale = inverse_frequencies(config)
        self._limit = config.max_positions
        self._cos = torch.empty(0, config.head_dim // 2)
        self._sin = torch.empty(0, config.head_dim // 2)

    def rows(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """positions [M] int64 -> cos, sin, each fp32 [M, D/2]."""
        needed = int(positions.max()) + 1
        have = self._cos.shape[0]
        if needed > have:
            size = min(max(needed, 2 * have, 256), self._limit)
            angles = torch.arange(have, size, dtype=torch.float32)[:, None] * self._inverse[None, :]
            wide = angles.double()
            self._cos = torch.cat([self._cos, (cos64(wide) * self._scale).float()])
            self._sin = torch.cat([self._sin, (sin64(wide) * self._scale).float()])
        return self._cos[positions], self._sin[positions]
