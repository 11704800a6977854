"""SwiGLU's gate in fp64."""

from __future__ import annotations

import torch
from torch import Tensor


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """gate_up [M, 2I], gate first -> gate / (1 + exp(-gate)) * up, [M, I] fp64."""
    gate, up = gate_up.double().chunk(2, dim=-1)
    return gate / (1.0 + torch.exp(-gate)) * up
