"""Inputs as recipes, and where they stand in memory.

``normal``, ``stand``, ``surround`` and ``lay`` are printed in reproductions as they are here, so they use torch alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from detharness.testing.batches import Batch

DISTINCT = 61  # Rows of a recipe: a prime, so that no tile size meets the same row in the same place again.


class Normal:
    """Standard normal values of ``shape``, from a seed: in ``rows`` the shape of one row, elsewhere the whole one."""

    def __init__(self, *shape: int, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> None:
        self.shape = shape
        self.dtype = dtype
        self.device = torch.device(device)

    def __repr__(self) -> str:
        shape = "".join(f"{length}, " for length in self.shape)
        return f"Normal({shape}dtype={self.dtype}, device={str(self.device)!r})"

    def tensor(self, *, seed: int, rows: int | None = None) -> Tensor:
        """The values: [*shape], or [rows, *shape]."""
        return normal(self._whole(rows), seed=seed, dtype=self.dtype).to(self.device)

    def code(self, *, seed: int, rows: int | None = None) -> str:
        """The call that makes them."""
        moved = "" if self.device.type == "cpu" else f".to({str(self.device)!r})"
        return f"normal({self._whole(rows)}, seed={seed}, dtype={self.dtype}){moved}"

    def _whole(self, rows: int | None) -> tuple[int, ...]:
        return self.shape if rows is None else (rows, *self.shape)


def normal(shape: tuple[int, ...], *, seed: int, dtype: torch.dtype) -> Tensor:
    """Standard normal values, drawn in fp32."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(dtype)


def stand(table: Tensor, *, rows: int, row: int, slot: int) -> Tensor:
    """``rows`` rows of ``table`` in order, and from its start again: row ``row`` stands in slot ``slot``."""
    return table[(torch.arange(rows, device=table.device) + row - slot) % len(table)]


def surround(batch: Tensor, *, slot: int, neighbours: str) -> Tensor:
    """The row in ``slot`` among copies of itself, or among rows of nan, inf, -inf, max or subnormal."""
    if neighbours == "copies":
        return batch[[slot] * len(batch)]
    if batch.is_floating_point():
        limits = torch.finfo(batch.dtype)
        values = {"max": limits.max, "subnormal": limits.smallest_normal / 2}
        value = values[neighbours] if neighbours in values else float(neighbours)
        batch[:slot] = value
        batch[slot + 1 :] = value
    return batch


def lay(x: Tensor, *, layout: str) -> Tensor:
    """The same values elsewhere in memory; what lies between them is NaN."""
    gap = float("nan") if x.is_floating_point() else 0
    if layout.startswith("offset"):
        offset = int(layout.split()[1])
        return x.new_full((x.numel() + offset,), gap)[offset:].view(x.shape).copy_(x)
    if layout == "apart":
        return x.new_full((*x.shape[:-1], x.shape[-1] + 3), gap)[..., 1:-2].copy_(x)
    if layout == "every other":
        return x.new_full((2 * len(x), *x.shape[1:]), gap)[::2].copy_(x)
    return x.movedim(0, -1).contiguous().movedim(-1, 0)


def seed_of(seed: int, index: int) -> int:
    """The seed of the input at ``index``, so that no two are alike."""
    return 1000 * seed + index


def tensors(given: Mapping[str, object], *, seed: int, first: int, rows: int | None) -> dict[str, Any]:
    """The arguments with every recipe made; the first of them is input number ``first``."""
    return {
        name: value.tensor(seed=seed_of(seed, first + index), rows=rows) if isinstance(value, Normal) else value
        for index, (name, value) in enumerate(given.items())
    }


def arrange(table: Tensor, batch: Batch) -> Tensor:
    """The rows of ``table`` as ``batch`` says, in fresh memory."""
    x = stand(table, rows=batch.rows, row=batch.row, slot=batch.slot)
    if batch.neighbours != "own":
        x = surround(x, slot=batch.slot, neighbours=batch.neighbours)
    return x if batch.layout == "packed" else lay(x, layout=batch.layout)
