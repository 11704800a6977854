"""Paged attention: one code path for prefill, chunk and decode, on a KV grid that starts at token 0.

Each (row, KV block) gives a partial softmax: its maximum, the sum of its weights and the weighted values. A row merges
its blocks in ascending order. The grid is absolute and independent of the page size, so neither chunk borders nor
cache hits nor pages can move a bit. Slots beyond a request's context are never gathered.

A masked key inside a shared block gets weight exactly 0. Values that are not finite are taken out of the product (0 x
NaN is NaN) and handed, as NaN, to the rows that do see them: not even a request's own later tokens reach a row.
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

    rows, groups [n, T]: source row and query head within its group; real [n, T]: not padding. pair_tile, pair_block
    [p]; places [p, Hkv, GRID]: the key's row in pages seen as [pages * page_size * Hkv, D], the request's last key
    where the block goes past its context; visible [p, T, GRID].
    """

    rows: Tensor
    groups: Tensor
    real: Tensor
    pair_tile: Tensor
    pair_block: Tensor
    places: Tensor
    visible: Tensor


class AttentionKernel:
    """Holds the certified products per head size, and the tile layout of the last step (shared by its layers)."""

    def __init__(self) -> None:
        self._products: dict[int, tuple[BatchedProduct, BatchedProduct, Schedule]] = {}
        self._layout: tuple[PagedBatch, tuple[int, int, int | None, Schedule], list[_Tiles]] | None = None
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
        key = (group, kv_heads, window, self._product(width)[2])
        if self._layout is None or self._layout[0] is not batch or self._layout[1] != key:
            self._layout = batch, key, _layout(batch, *key)
        grouped = q.float().reshape(rows, kv_heads, group, width)
        output = torch.empty(rows, kv_heads, group, width)
        for tiles in self._layout[2]:
            result = self._attend(grouped, k_pages, v_pages, tiles, scale)
            output[tiles.rows[tiles.real], :, tiles.groups[tiles.real]] = result.transpose(1, 2)[tiles.real]
        return output.view(rows, heads, width).to(q.dtype)

    def _attend(self, grouped: Tensor, k_pages: Tensor, v_pages: Tensor, tiles: _Tiles, scale: float) -> Tensor:
        """[n, Hkv, T, D] outputs of the tiles."""
        queries = grouped[tiles.rows, :, tiles.groups].transpose(1, 2).contiguous()  # [n, Hkv, T, D]
        tile_count, kv_heads, size, width = queries.shape
        best = queries.new_full((tile_count, kv_heads, size), -math.inf)
        total = torch.zeros_like(best)
        mixed = torch.zeros_like(queries)
        step = max(1, PARTIALS // (kv_heads * size * GRID))
        for start in range(0, len(tiles.pair_tile), step):
            pair_tile = tiles.pair_tile[start : start + step]
            visible = tiles.visible[start : start + step, None]
            places = tiles.places[start : start + step].view(-1)
            keys, values = (pages.reshape(-1, width).index_select(0, places).float() for pages in (k_pages, v_pages))
            left = queries[pair_tile]
            block_best, block_total, block_mixed = self._partials(
                left, keys.view(-1, GRID, width), values.view(-1, GRID, width), visible, scale
            )
            # The running maximum first: then every rescaling factor of the step comes from one call of exp.
            blocks = _runs(tiles.pair_block[start : start + step])
            before, after = torch.empty_like(block_best), torch.empty_like(block_best)
            for run in blocks:
                before[run] = best[pair_tile[run]]
                after[run] = torch.maximum(before[run], block_best[run])
                best[pair_tile[run]] = after[run]
            base = torch.where(after == -math.inf, 0.0, after)
            keep, add = exp32(torch.stack([before, block_best]) - base)
            # A block that is masked for a row is an exact no-op for it: keep is 1 and both terms are 0.
            block_total *= add
            block_mixed *= add[..., None]
            for run in blocks:
                index = pair_tile[run]
                total[index] = total[index] * keep[run] + block_total[run]
                mixed[index] = mixed[index] * keep[run, ..., None] + block_mixed[run]
        # Adding zero turns -0 into +0: the sign of an exact zero could come from a masked key's sign.
        return mixed / total[..., None] + 0.0

    def _partials(
        self, left: Tensor, keys: Tensor, values: Tensor, visible: Tensor, scale: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Maximum [p, Hkv, T], sum of weights [p, Hkv, T] and weighted values [p, Hkv, T, D] of every pair.

        left [p, Hkv, T, D]; keys, values [p * Hkv, GRID, D]; visible [p, 1, T, GRID].
        """
        score_product, value_product, _ = self._product(left.shape[-1])
        pairs, kv_heads, size, width = left.shape
        scores = score_product(left.view(-1, size, width), keys).view(pairs, kv_heads, size, GRID) * scale
        scores.masked_fill_(~visible, -math.inf)
        best = scores.amax(dim=-1)
        weights = exp32(scores - torch.where(best == -math.inf, 0.0, best)[..., None])
        total = tree_sum(weights, self._sum_plan)
        # 0 x NaN is NaN, so values that are not finite leave the product, and reach the rows that see them as NaN.
        odd = None
        if not all(math.isfinite(end) for end in torch.stack(torch.aminmax(values)).tolist()):
            odd = ~torch.isfinite(values)
            values = torch.where(odd, 0.0, values)
        mixed = value_product(weights.view(-1, size, GRID), values).view(left.shape)
        if odd is not None:
            seen = visible.expand(scores.shape).float().reshape(-1, size, GRID)
            mixed[torch.bmm(seen, odd.float()).view(left.shape) > 0] = math.nan
        return best, total, mixed


def _runs(blocks: Tensor) -> list[slice]:
    """Cut ascending block numbers into one slice per number."""
    ends = torch.unique_consecutive(blocks, return_counts=True)[1].cumsum(0).tolist()
    return [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]


def _layout(batch: PagedBatch, group: int, kv_heads: int, window: int | None, schedule: Schedule) -> list[_Tiles]:
    """Cut every request's query rows (token-major, then head within the group) into tiles, by tile size."""
    by_size: dict[int, list[tuple[int, int, int]]] = {}
    starts = batch.row_starts.tolist()
    for request in range(len(starts) - 1):
        for first, filled, size in cut((starts[request + 1] - starts[request]) * group, schedule):
            by_size.setdefault(size, []).append((request, first, filled))
    return [_tiles(batch, group, kv_heads, window, size, by_size[size]) for size in sorted(by_size)]


def _tiles(
    batch: PagedBatch, group: int, kv_heads: int, window: int | None, size: int, pieces: list[tuple[int, int, int]]
) -> _Tiles:
    request, first, filled = torch.tensor(pieces).unbind(dim=1)
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
    pair_block, pair_tile = torch.tensor(pairs).unbind(dim=1)
    real = offset < filled[:, None]
    positions = torch.where(real, positions, -1)

    columns = pair_block[:, None] * GRID + torch.arange(GRID)
    pair_request = request[pair_tile]
    owned = torch.minimum(columns, batch.context_lens[pair_request][:, None] - 1)
    page = batch.block_tables[pair_request[:, None], owned // batch.page_size]
    slots = page * batch.page_size + owned % batch.page_size
    at = positions[pair_tile][:, :, None]
    visible = columns[:, None, :] <= at
    if window is not None:
        visible &= columns[:, None, :] > at - window
    return _Tiles(
        rows=rows,
        groups=flat % group,
        real=real,
        pair_tile=pair_tile,
        pair_block=pair_block,
        places=slots[:, None, :] * kv_heads + torch.arange(kv_heads)[:, None],
        visible=visible,
    )
