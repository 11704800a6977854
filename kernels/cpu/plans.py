"""The reduction plans of the C++ kernels beyond the trees over K: what attention.cpp fixes in its source."""

from __future__ import annotations

from detharness.kernels.contract import ReductionPlan

GRID = 64  # Tokens per KV block; kGrid in attention.cpp.


def attention_plans(width: int) -> tuple[str, ...]:
    """Plan ids of attention with heads of ``width``."""
    return (
        ReductionPlan("attention.scores", width, 1, width, "fma-lanes16-halving", "pairwise").id,
        ReductionPlan("attention.softmax", GRID, 1, GRID, "halving", "pairwise").id,
        ReductionPlan("attention.values", GRID, 8, GRID // 8, "fma-ascending", "pairwise").id,
    )
