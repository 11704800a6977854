"""Log-softmax in fp64."""

from __future__ import annotations

from torch import Tensor


def log_softmax(logits: Tensor) -> Tensor:
    """logits [M, V] -> [M, V] fp64 log-probabilities."""
    shifted = logits.double() - logits.double().amax(dim=-1, keepdim=True)
    return shifted - shifted.exp().sum(dim=-1, keepdim=True).log()
