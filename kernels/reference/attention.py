"""Causal paged attention in fp64, by loops over rows, heads and keys."""

from __future__ import annotations

import torch
from torch import Tensor

from detharness.kernels.contract import PagedBatch


def attention(
    q: Tensor, k_pages: Tensor, v_pages: Tensor, batch: PagedBatch, scale: float, window: int | None
) -> Tensor:
    """q [M, H, D], pages [pages, page_size, Hkv, D] -> [M, H, D] fp64; see ``KernelSet.attention``.

    Reads exactly the keys a row attends: a slot that is masked or not owned is never touched.
    """
    rows, heads, width = q.shape
    group = heads // k_pages.shape[2]
    output = torch.empty(rows, heads, width, dtype=torch.float64)
    for request in range(batch.context_lens.shape[0]):
        table = batch.block_tables[request].tolist()
        for row in range(int(batch.row_starts[request]), int(batch.row_starts[request + 1])):
            position = int(batch.positions[row])
            first = 0 if window is None else max(0, position - window + 1)
            places = [(table[at // batch.page_size], at % batch.page_size) for at in range(first, position + 1)]
            for head in range(heads):
                keys = torch.stack([k_pages[page, offset, head // group].double() for page, offset in places])
                values = torch.stack([v_pages[page, offset, head // group].double() for page, offset in places])
                weights = torch.softmax(keys @ q[row, head].double() * scale, dim=0)
                output[row, head] = weights @ values
    return output
