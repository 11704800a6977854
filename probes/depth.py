"""How far a probe goes: one table. Change the demonstration's length here and nowhere else.

Two rows of the table are the default, one per dtype, sized so that ``detharness probe --kernels both`` ends within
three minutes on two cores with SmolLM2-135M. They differ because the library's kernels move at different places:
in fp32 with the number of rows; in bf16 when decoded rows are computed again as prefill, when a row is computed
alone, and when neighbours set the padding. What a row leaves out is reported as ``not_tested``.
Naming axes with ``--axes`` takes them to full depth.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from detharness.probes.axes import AXES
from detharness.probes.axes.axis import AxisDepth


@dataclass(frozen=True)
class ArmDepth:
    """What one arm plays.

    tokens: every reply of the arm is cut to this length (None: not cut). together_tokens: the common play's.
    combined: covering rows (None: all of them), each cut to ``combined_tokens``. filler_count: random neighbours.
    """

    axes: Mapping[str, AxisDepth]
    tokens: int | None = None
    together_tokens: int | None = None
    combined: int | None = 0
    combined_tokens: int | None = None
    filler_count: int = 4


_FEW_BITS = ArmDepth(  # fp32 moves in bits on the number of rows, and seldom anywhere else.
    axes={
        "batch_size": AxisDepth(levels=("size=2", "size=5")),
        "slot": AxisDepth(levels=("copies=2", "copies=5")),
    },
    tokens=16,
)

DEFAULT: Mapping[str, ArmDepth] = {
    "fp32": _FEW_BITS,
    "bf16w": _FEW_BITS,
    "bf16": ArmDepth(
        axes={
            "batch_size": AxisDepth(probes=1, tokens=12, levels=("size=2", "size=5")),
            "slot": AxisDepth(probes=1, tokens=12, levels=("copies=2", "copies=5")),
            "content": AxisDepth(tokens=24, levels=("foreign", "ragged")),
            "chunk": AxisDepth(probes=2, tokens=16, levels=("one_over",)),
            "prefix_cache": AxisDepth(probes=1, tokens=48, levels=("warm", "follow_up")),
            "page_size": AxisDepth(tokens=8, levels=("odd",)),
            "page_placement": AxisDepth(tokens=8, levels=("permuted_nan",)),
            "preemption": AxisDepth(probes=2, tokens=36, levels=("recompute",)),
            "threads": AxisDepth(tokens=8),
            "seeds": AxisDepth(probes=1, tokens=8, levels=("other", "none")),
            "samplers": AxisDepth(probes=1, tokens=8, levels=("top_k",)),
            "n": AxisDepth(probes=1, tokens=8),
            "cancel": AxisDepth(probes=1, tokens=8, levels=("midway",)),
            "arrival": AxisDepth(probes=1, tokens=8, levels=("neighbours", "joins")),
            "run_to_run": AxisDepth(probes=1, tokens=8),
            "padding": AxisDepth(probes=1, tokens=8, levels=("width",)),
        },
        together_tokens=24,
        combined=1,
        combined_tokens=16,
        filler_count=2,
    ),
}


def depth_for(dtype: str, axes: tuple[str, ...] | None, *, traffic: bool) -> ArmDepth:
    """The depth of an arm: the default row; the named axes in full; or none of them when only traffic was asked.

    All axes by name bring the whole covering array with them.
    """
    if axes is not None:
        combined = None if set(axes) == set(AXES) else 0
        return ArmDepth({name: AxisDepth() for name in axes}, combined=combined)
    if traffic:
        return ArmDepth({})
    return DEFAULT[dtype]
