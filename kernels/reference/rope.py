"""Rotary embedding by halves in fp64, one pair at a time."""

from __future__ import annotations

import torch
from torch import Tensor


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [M, H, D], cos and sin [M, D/2] -> [M, H, D] fp64: pair (i, i + D/2) is rotated by the angle of its row."""
    rows, heads, width = x.shape
    half = width // 2
    output = torch.empty(rows, heads, width, dtype=torch.float64)
    for row in range(rows):
        for pair in range(half):
            c, s = float(cos[row, pair]), float(sin[row, pair])
            a, b = x[row, :, pair].double(), x[row, :, pair + half].double()
            output[row, :, pair] = a * c - b * s
            output[row, :, pair + half] = b * c + a * s
    return output
