"""Batched products for attention: [items, T, K] x [items, K, N] in certified tile sizes and item counts."""

from __future__ import annotations

import torch
from torch import Tensor

from detharness.errors import KernelError
from detharness.kernels.pytorch.tiles import TileProbe, probe_tiles
from detharness.kernels.threads import intraop_threads

COUNTS = tuple(1 << power for power in range(11))  # 1 to 1,024 items per library call.


class BatchedProduct:
    """One product shape (K, N). ``transposed`` says the right side arrives as [items, N, K].

    Items are cut into powers of two, so the library sees a finite set of shapes; each count is compared with single
    items before its first use, and left out if it differs (the last piece is zero-padded when 1 is left out); if none
    is left, the product refuses to run.
    """

    def __init__(self, name: str, depth: int, columns: int, *, transposed: bool) -> None:
        self._transposed = transposed
        generator = torch.Generator().manual_seed(20260102)
        shape = (columns, depth) if transposed else (depth, columns)
        self._right = torch.randn(1, *shape, generator=generator)
        self._left = torch.randn(64, depth, generator=generator)
        self.probe: TileProbe = probe_tiles(name, lambda tile: self._multiply(tile[None], self._right)[0], depth)
        self._counts: dict[int, list[int]] = {}

    def _multiply(self, left: Tensor, right: Tensor) -> Tensor:
        return torch.bmm(left, right.transpose(1, 2) if self._transposed else right)

    def _certified(self, tile: int) -> list[int]:
        """Item counts that give single-item bits at this tile size, under every probed thread count."""
        if tile not in self._counts:
            expected = self._multiply(self._left[None, :tile].contiguous(), self._right)[0]
            counts = [count for count in COUNTS if self._agrees(count, tile, expected)]
            if not counts:
                raise KernelError(
                    f"{self.probe.product}: no item count gives the same bits twice on this host, "
                    "so the invariant kernels cannot run here; use --kernels torch"
                )
            self._counts[tile] = counts
        return self._counts[tile]

    def _agrees(self, count: int, tile: int, expected: Tensor) -> bool:
        # The probed item stands first, in the middle and last; the others are hostile.
        lefts = torch.full((count, tile, self._left.shape[1]), float("nan"))
        rights = torch.full((count, *self._right.shape[1:]), 1e38)
        places = sorted({0, count // 2, count - 1})
        lefts[places], rights[places] = self._left[:tile], self._right[0]
        for threads in self.probe.threads:
            with intraop_threads(threads):
                result = self._multiply(lefts, rights)
            if not all(torch.equal(result[place], expected) for place in places):
                return False
        return True

    def __call__(self, left: Tensor, right: Tensor) -> Tensor:
        """left [P, T, K], right [P, K, N] (or [P, N, K]) fp32 -> [P, T, N]; T is a size the probe kept."""
        self.probe.check_settings()
        items, tile, _ = left.shape
        counts = self._certified(tile)
        results = []
        start = 0
        while start < items:
            rest = items - start
            count = next((c for c in reversed(counts) if c <= rest), counts[0])
            filled = min(rest, count)
            piece_left, piece_right = left[start : start + filled], right[start : start + filled]
            if filled < count:
                piece_left = torch.cat([piece_left, piece_left.new_zeros(count - filled, *left.shape[1:])])
                piece_right = torch.cat([piece_right, piece_right.new_zeros(count - filled, *right.shape[1:])])
            results.append(self._multiply(_aligned(piece_left), _aligned(piece_right))[:filled])
            start += filled
        return results[0] if len(results) == 1 else torch.cat(results)


def _aligned(x: Tensor) -> Tensor:
    """x contiguous at a 64-byte boundary, where the probe's own operands stand: a library may look at addresses."""
    x = x.contiguous()
    return x if x.data_ptr() % 64 == 0 else x.clone()
