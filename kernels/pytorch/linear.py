"""Linear layers: a fixed tree over K, fp32 leaves by certified tiles, partials merged pairwise, one final rounding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from detharness.kernels.contract import ReductionPlan, Schedule, tree_plan
from detharness.kernels.elementary import pairwise_sum
from detharness.kernels.pytorch.tiles import TileProbe, check_precision, cut, probe_tiles, shared_schedule

# Output columns per product: bounds the partials' memory. A library may choose its order of additions by the number of
# columns (one column alone gives other bits with MKL), so this is no schedule: it is fixed by the weight's shape.
PANEL = 4096
# Fewer columns are filled up with zeros. Libraries have code of their own for narrow products, and it need not be pure:
# MKL on an AMD Zen 2 gives a row other bits in other slots at 1, 5 to 7 and 9 to 11 columns.
NARROWEST = 64

LEAF_ORDER = "certified-bmm"


@dataclass(frozen=True)
class PackedLinear:
    """Weights as fp32 leaves: each panel is [leaves, leaf_length, columns], K zero-padded to leaves x leaf_length.

    ``columns`` is N; a narrow last panel has further columns of zeros.
    """

    columns: int
    panels: tuple[Tensor, ...]
    bias: Tensor | None
    plan: ReductionPlan
    schedule: Schedule
    probes: tuple[TileProbe, ...]

    def rows(self, ids: Tensor) -> Tensor:
        """Rows ``ids`` [M] of the weights, [M, K] fp32: columns of the panels."""
        found = torch.empty(len(ids), self.plan.length)
        for panel, first in zip(self.panels, range(0, PANEL * len(self.panels), PANEL), strict=True):
            held = (ids >= first) & (ids < first + PANEL)
            found[held] = panel[:, :, ids[held] - first].permute(2, 0, 1).flatten(1)[:, : self.plan.length]
        return found


class LinearKernel:
    """Packs and multiplies; keeps the probe of every panel shape seen, so that each is probed once."""

    def __init__(self) -> None:
        self._probes: dict[tuple[int, int, int], TileProbe] = {}
        self.plans: set[str] = set()

    @property
    def probes(self) -> list[TileProbe]:
        """Probes of the panel shapes seen so far."""
        return list(self._probes.values())

    def pack(self, weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> PackedLinear:
        """weights [N_i, K] and biases [N_i] or None, joined along N (a missing bias counts as zeros beside others)."""
        check_precision("linear")
        weight = torch.cat([part.float() for part in weights])
        rows, length = weight.shape
        plan = tree_plan("linear", length, LEAF_ORDER)
        self.plans.add(plan.id)
        padded = pad(weight, (0, plan.leaves * plan.leaf_length - length))
        leaves = padded.view(rows, plan.leaves, plan.leaf_length).permute(1, 2, 0)
        panels = tuple(
            pad(panel, (0, max(0, NARROWEST - panel.shape[2]))).contiguous()
            for panel in torch.split(leaves, PANEL, dim=2)
        )
        probes = tuple(self._probe(panel) for panel in panels)
        # A wide weight ends in a narrower panel: rows are cut by sizes that every panel allows.
        schedule = shared_schedule(plan.id, [probe.schedule for probe in probes])
        bias = None
        if any(part is not None for part in biases):
            bias = torch.cat(
                [torch.zeros(w.shape[0]) if b is None else b.float() for w, b in zip(weights, biases, strict=True)]
            )
        return PackedLinear(rows, panels, bias, plan, schedule, probes)

    def _probe(self, panel: Tensor) -> TileProbe:
        leaves, leaf_length, columns = panel.shape
        shape = (leaves, leaf_length, columns)
        if shape not in self._probes:
            name = f"linear {leaves}x{leaf_length}x{columns}"
            self._probes[shape] = probe_tiles(name, lambda tile: _panel_product(tile, panel), leaves * leaf_length)
        return self._probes[shape]

    def __call__(self, x: Tensor, packed: PackedLinear) -> Tensor:
        """x [M, K] fp32 or bf16 -> [M, N] in x.dtype."""
        for probe in packed.probes:
            probe.check_settings()
        plan = packed.plan
        wide = pad(x.float(), (0, plan.leaves * plan.leaf_length - plan.length))
        output = torch.empty(x.shape[0], packed.columns, dtype=x.dtype)
        for start, filled, size in cut(x.shape[0], packed.schedule):
            tile = wide.new_zeros(size, wide.shape[1])
            tile[:filled] = wide[start : start + filled]
            for panel, first in zip(packed.panels, range(0, packed.columns, PANEL), strict=True):
                beyond = min(first + PANEL, packed.columns)
                result = _panel_product(tile, panel)[:filled, : beyond - first]
                if packed.bias is not None:
                    result = result + packed.bias[first:beyond]
                output[start : start + filled, first:beyond] = result
        return output


def _panel_product(tile: Tensor, panel: Tensor) -> Tensor:
    """tile [T, leaves * leaf_length] x panel [leaves, leaf_length, N] -> [T, N] fp32, leaves merged pairwise."""
    leaves, leaf_length, _ = panel.shape
    return pairwise_sum(torch.bmm(tile.view(-1, leaves, leaf_length).transpose(0, 1).contiguous(), panel))
