"""Linear layer in fp64."""

from __future__ import annotations

from torch import Tensor


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [M, K], weight [N, K], bias [N] or None -> [M, N] fp64."""
    product = x.double() @ weight.double().T
    return product if bias is None else product + bias.double()
