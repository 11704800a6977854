"""Paged attention: one code path for prefill, chunk and decode, on a KV grid that starts at token 0.

Each (row, KV block) gives a partial softmax: its maximum, the sum of its weights and the weighted values. A row merges
its blocks in ascending order. The grid is absolute and independent of the page size, so neither chunk borders nor
cache hits nor pages can move a bit. Slots beyond a request's context are never gathered.

A masked key inside a shared block gets weight exactly 0. Its value is still multiplied by that 0, so a request whose
OWN later tokens have non-finite values would hand NaN to its own earlier rows in the same step; no other request can.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from detharness.kernels.contract import PagedBatch, ReductionPlan, Schedule, tree_plan
from detharness.kernels.elementary import exp32, tree_sum
from detharness.kernels.pytorch.products import BatchedProduct
from detharness.kernels.pytorch.tiles import TileProbe, cut, shared_schedule

GRID = 64  # Tokens per KV block.
PARTIALS = 1 << 24  # Scores held at once; larger steps are worked through in pieces, which is schedule.


@dataclass(frozen=True)
class _Tiles:
    """Query tiles of one size, and the (tile, KV block) pairs they need, pairs in ascending block order.

    rows, groups [n, T]: source row and query head within its group; positions [n, T], -1 for padding.
    filled [n]; pair_tile, pair_block [p]; slots [p, GRID]; owned, visible [p, GRID], [p, T, GRID].
    """

    rows: Tensor
    groups: Tensor
    positions: Tensor
    pair_tile: Tensor
    pair_block: Tensor
    slots: Tensor
    owned: Tensor
    visible: Tensor


class AttentionKernel:
    """Holds the certified products per head size, and the tile layout of the last step (shared by its layers)."""

    def __init__(self) -> None:
        self._products: dict[int, tuple[BatchedProduct, BatchedProduct, Schedule]] = {}
        self._layout: tuple[PagedBatch, int, int, int | None, list[_Tiles]] | None = None
        self._sum_plan: ReductionPlan = tree_plan("attention.softmax", GRID, "halving")
        self.plans: set[str] = set()

    @property
    def probes(self) -> list[TileProbe]:
        """Probes of the products used so far."""
        return [product.probe for pair in self._products.values() for product in pair[:2]]

    def _product(self, width: int) -> tuple[BatchedProduct, BatchedProduct, Schedule]:
        if width not in self._products:
            scores = BatchedProduct(f"attention scores {width}x{GRID}", width, GRID, transposed=True)
            values = BatchedProduct(f"attention values {GRID}x{width}", GRID, width, transposed=False)
            schedule = shared_schedule(f"attention {width}", [scores.probe.schedule, values.probe.schedule])
            self._products[width] = scores, values, schedule
            merge = ReductionPlan("attention.values", GRID, 1, GRID, "certified-bmm", "ascending")
            depth = ReductionPlan("attention.scores", width, 1, width, "certified-bmm", "ascending")
            self.plans |= {merge.id, depth.id, self._sum_plan.id}
        return self._products[width]

    def __call__(
        self, q: Tensor, k_pages: Tensor, v_pages: Tensor, batch: PagedBatch, scale: float, window: int | None
    ) -> Tensor:
        """q [M, H, D] -> [M, H, D]; see ``KernelSet.attention``."""
        rows, heads, width = q.shape
        kv_heads = k_pages.shape[2]
        group = heads // kv_heads
        schedule = self._product(width)[2]
        held = self._layout
        if held is None or held[0] is not batch or held[1:4] != (group, width, window):
            self._layout = held = (batch, group, width, window, _layout(batch, group, window, schedule))
        grouped = q.float().reshape(rows, kv_heads, group, width)
        output = torch.empty(rows, kv_heads, group, width)
        for tiles in held[4]:
            result = self._attend(grouped, k_pages, v_pages, tiles, scale)
            real = tiles.positions >= 0
            output[tiles.rows[real], :, tiles.groups[real]] = result.transpose(1, 2)[real]
        return output.view(rows, heads, width).to(q.dtype)

    def _attend(self, grouped: Tensor, k_pages: Tensor, v_pages: Tensor, tiles: _Tiles, scale: float) -> Tensor:
        """[n, Hkv, T, D] outputs of the tiles."""
        score_product, value_product, _ = self._product(grouped.shape[-1])
        kv_heads, width = k_pages.shape[2], k_pages.shape[3]
        tile_count, size = tiles.rows.shape
        queries = grouped[tiles.rows, :, tiles.groups].transpose(1, 2).contiguous()  # [n, Hkv, T, D]
        best = queries.new_full((tile_count, kv_heads, size), -math.inf)
        total = torch.zeros_like(best)
        mixed = torch.zeros_like(queries)
        step = max(1, PARTIALS // (kv_heads * size * GRID))
        for start in range(0, len(tiles.pair_tile), step):
            part = slice(start, start + step)
            pair_tile, pair_block = tiles.pair_tile[part], tiles.pair_block[part]
            owned = tiles.owned[part, :, None, None]
            keys = torch.where(owned, k_pages.view(-1, kv_heads, width)[tiles.slots[part]].float(), 0.0)
            values = torch.where(owned, v_pages.view(-1, kv_heads, width)[tiles.slots[part]].float(), 0.0)
            pairs = len(pair_tile)

            def stacked(x: Tensor) -> Tensor:  # [p, GRID, Hkv, D] -> [p * Hkv, GRID, D]
                return x.transpose(1, 2).reshape(-1, GRID, width)

            left = queries[pair_tile].view(-1, size, width)
            scores = score_product(left, stacked(keys)).view(pairs, kv_heads, size, GRID) * scale
            scores = torch.where(tiles.visible[part, None], scores, -math.inf)
            block_best = scores.amax(dim=-1)
            shift = torch.where(block_best == -math.inf, 0.0, block_best)
            weights = exp32(scores - shift[..., None])
            block_total = tree_sum(weights, self._sum_plan)
            block_mixed = value_product(weights.view(-1, size, GRID), stacked(values))
            block_mixed = block_mixed.view(pairs, kv_heads, size, width)
            for block in torch.unique_consecutive(pair_block).tolist():
                here = torch.nonzero(pair_block == block)[:, 0]
                index = pair_tile[here]
                old_best, new_best = best[index], block_best[here]
                top = torch.maximum(old_best, new_best)
                base = torch.where(top == -math.inf, 0.0, top)
                keep, add = exp32(old_best - base), exp32(new_best - base)
                # A block that is masked for a row is an exact no-op for it, whatever stands in the block.
                seen = new_best != -math.inf
                total[index] = torch.where(seen, total[index] * keep + block_total[here] * add, total[index])
                mixed[index] = torch.where(
                    seen[..., None],
                    mixed[index] * keep[..., None] + block_mixed[here] * add[..., None],
                    mixed[index],
                )
                best[index] = top
        # Adding zero turns -0 into +0: the sign of an exact zero could come from a masked key's sign.
        return mixed / total[..., None] + 0.0


def _layout(batch: PagedBatch, group: int, window: int | None, schedule: Schedule) -> list[_Tiles]:
    """Cut every request's query rows (token-major, then head within the group) into tiles, by tile size."""
    by_size: dict[int, list[tuple[int, int, int]]] = {}
    starts = batch.row_starts.tolist()
    for request in range(len(starts) - 1):
        for first, filled, size in cut((starts[request + 1] - starts[request]) * group, schedule):
            by_size.setdefault(size, []).append((request, first, filled))
    return [_tiles(batch, group, window, size, by_size[size]) for size in sorted(by_size)]


def _tiles(batch: PagedBatch, group: int, window: int | None, size: int, pieces: list[tuple[int, int, int]]) -> _Tiles:
    request = torch.tensor([piece[0] for piece in pieces])
    first = torch.tensor([piece[1] for piece in pieces])
    filled = torch.tensor([piece[2] for piece in pieces])
    offset = torch.arange(size)
    flat = first[:, None] + torch.minimum(offset, filled[:, None] - 1)
    rows = batch.row_starts[request][:, None] + flat // group
    positions = batch.positions[rows]
    last_block = positions.amax(dim=1) // GRID
    lowest = positions.amin(dim=1)
    first_block = torch.zeros_like(lowest) if window is None else (lowest - window + 1).clamp_min(0) // GRID
    pairs = [
        (block, tile)
        for tile, (low, high) in enumerate(zip(first_block.tolist(), last_block.tolist(), strict=True))
        for block in range(low, high + 1)
    ]
    pairs.sort()
    pair_block = torch.tensor([pair[0] for pair in pairs])
    pair_tile = torch.tensor([pair[1] for pair in pairs])
    positions = torch.where(offset < filled[:, None], positions, -1)

    columns = pair_block[:, None] * GRID + torch.arange(GRID)
    pair_request = request[pair_tile]
    owned = columns < batch.context_lens[pair_request][:, None]
    page = torch.where(owned, columns // batch.page_size, 0)
    slots = batch.block_tables[pair_request[:, None], page] * batch.page_size + columns % batch.page_size
    slots = torch.where(owned, slots, 0)
    at = positions[pair_tile][:, :, None]
    visible = columns[:, None, :] <= at
    if window is not None:
        visible &= columns[:, None, :] > at - window
    return _Tiles(
        rows=rows,
        groups=flat % group,
        positions=positions,
        pair_tile=pair_tile,
        pair_block=pair_block,
        slots=slots,
        owned=owned,
        visible=visible,
    )
