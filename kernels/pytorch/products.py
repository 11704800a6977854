"""Batched products for attention: [items, T, K] x [items, K, N] in certified tile sizes and item counts."""

from __future__ import annotations

import torch
from torch import Tensor

from detharness.kernels.contract import Schedule
from detharness.kernels.pytorch.tiles import TileProbe, probe_tiles

COUNTS = tuple(1 << power for power in range(11))  # 1 to 1,024 items per library call.


class BatchedProduct:
    """One product shape (K, N). ``transposed`` says the right side arrives as [items, N, K].

    Item counts are padded to a power of two, so the library sees a finite set of shapes; each count is compared with
    single items before its first use, and left out if it differs.
    """

    def __init__(self, name: str, depth: int, columns: int, *, transposed: bool) -> None:
        self._transposed = transposed
        generator = torch.Generator().manual_seed(20260102)
        shape = (columns, depth) if transposed else (depth, columns)
        self._right = torch.randn(1, *shape, generator=generator)
        self._left = torch.randn(64, depth, generator=generator)
        self.schedule: Schedule
        self.probe: TileProbe
        self.schedule, self.probe = probe_tiles(name, lambda tile: self._multiply(tile[None], self._right)[0], depth)
        self._counts: dict[int, list[int]] = {}

    def _multiply(self, left: Tensor, right: Tensor) -> Tensor:
        return torch.bmm(left, right.transpose(1, 2) if self._transposed else right)

    def _certified(self, tile: int) -> list[int]:
        """Item counts that give single-item bits at this tile size."""
        if tile not in self._counts:
            left = self._left[:tile]
            expected = self._multiply(left[None].contiguous(), self._right)[0]
            counts = []
            for count in COUNTS:
                # The probed item stands first, in the middle and last; the others are hostile.
                lefts = torch.full((count, *left.shape), float("nan"))
                rights = torch.full((count, *self._right.shape[1:]), 1e38)
                places = sorted({0, count // 2, count - 1})
                lefts[places], rights[places] = left, self._right[0]
                result = self._multiply(lefts, rights)
                if all(torch.equal(result[place], expected) for place in places):
                    counts.append(count)
            self._counts[tile] = counts
        return self._counts[tile]

    def __call__(self, left: Tensor, right: Tensor) -> Tensor:
        """left [P, T, K], right [P, K, N] (or [P, N, K]) fp32 -> [P, T, N]; T is a size of ``schedule``."""
        items, tile, _ = left.shape
        counts = self._certified(tile)
        results = []
        start = 0
        while start < items:
            rest = items - start
            count = next((c for c in counts if c >= rest), counts[-1])
            filled = min(rest, count)
            piece_left, piece_right = left[start : start + filled], right[start : start + filled]
            if filled < count:
                piece_left = torch.cat([piece_left, piece_left.new_zeros(count - filled, *left.shape[1:])])
                piece_right = torch.cat([piece_right, piece_right.new_zeros(count - filled, *right.shape[1:])])
            results.append(self._multiply(piece_left.contiguous(), piece_right.contiguous())[:filled])
            start += filled
        return results[0] if len(results) == 1 else torch.cat(results)
