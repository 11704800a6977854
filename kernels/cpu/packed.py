"""Linear weights as the library reads them: panels of 32 columns, packed once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from detharness.errors import KernelError
from detharness.kernels.contract import ReductionPlan, tree_plan
from detharness.kernels.cpu.arena import Arena
from detharness.kernels.cpu.library import Library

_PANEL = 32  # Columns per packed panel; kPanel in linear.cpp.


@dataclass(frozen=True)
class PackedLinear:
    """Weights in the library's panels (``data``, fp32 or bf16), the fp32 bias padded to whole panels, and the plan."""

    data: Tensor
    bias: Tensor | None
    columns: int
    plan: ReductionPlan


def pack(library: Library, arena: Arena, weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> PackedLinear:
    """Join weights [N_i, K] along N and biases [N_i]; fp32 or bf16 weights are kept in their dtype."""
    dtype, length = weights[0].dtype, weights[0].shape[1]
    if any(weight.dtype != dtype for weight in weights):
        raise KernelError("weights packed together must share one dtype")
    bf16 = is_bf16(weights[0], "weight")
    plan = tree_plan("linear", length, "fma-ascending")
    columns = sum(weight.shape[0] for weight in weights)
    data = arena.zeros(library.packed_size(columns, length, plan.leaves, plan.leaf_length, bf16), dtype)
    first = 0
    for weight in weights:
        rows, dense = weight.shape[0], weight.contiguous()
        library.pack(data.data_ptr(), dense.data_ptr(), rows, first, length, plan.leaves, plan.leaf_length, bf16)
        first += rows
    return PackedLinear(data, _joined_bias(weights, biases, columns), columns, plan)


def _joined_bias(weights: Sequence[Tensor], biases: Sequence[Tensor | None], columns: int) -> Tensor | None:
    """fp32 bias over all columns, padded to whole panels; absent ones are zero; None when all are absent."""
    if all(bias is None for bias in biases):
        return None
    joined = torch.zeros(-(-columns // _PANEL) * _PANEL)
    first = 0
    for weight, bias in zip(weights, biases, strict=True):
        if bias is not None:
            joined[first : first + weight.shape[0]] = bias.float()
        first += weight.shape[0]
    return joined


def is_bf16(x: Tensor, what: str) -> bool:
    """True for bf16, False for fp32; the library reads host memory of these two only."""
    if not x.is_cpu:
        raise KernelError(f"{what} must be in host memory for the C++ kernels, not on {x.device}")
    if x.dtype == torch.bfloat16:
        return True
    if x.dtype == torch.float32:
        return False
    raise KernelError(f"{what} must be fp32 or bf16 for the C++ kernels, not {x.dtype}")
