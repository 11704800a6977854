"""Attention as simple engines do it: one right-padded ``scaled_dot_product_attention`` call per step."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from detharness.kernels.contract import PagedBatch


def padded_attention(
    q: Tensor, k_pages: Tensor, v_pages: Tensor, batch: PagedBatch, scale: float, window: int | None
) -> Tensor:
    """q [M, H, D] -> [M, H, D]; keys, values and queries are right-padded with zeros to the longest request.

    Only slots a request owns are gathered. A padded query row attends key 0, so that its softmax is defined; its
    output is dropped.
    """
    starts, contexts = batch.row_starts, batch.context_lens
    requests = contexts.shape[0]
    counts = starts[1:] - starts[:-1]
    longest_q, longest_k = int(counts.max()), int(contexts.max())
    kv_heads, width = k_pages.shape[2], k_pages.shape[3]

    columns = torch.arange(longest_k)
    owned = columns[None, :] < contexts[:, None]
    pages = batch.block_tables[:, columns // batch.page_size].clamp_min(0)
    slots = pages * batch.page_size + columns % batch.page_size
    keys = k_pages.new_zeros(requests, longest_k, kv_heads, width)
    values = torch.zeros_like(keys)
    keys[owned] = k_pages.view(-1, kv_heads, width)[slots[owned]]
    values[owned] = v_pages.view(-1, kv_heads, width)[slots[owned]]

    request = torch.repeat_interleave(torch.arange(requests), counts)
    offset = torch.arange(q.shape[0]) - starts[request]
    queries = q.new_zeros(requests, longest_q, q.shape[1], width)
    queries[request, offset] = q
    positions = torch.zeros(requests, longest_q, dtype=torch.int64)
    positions[request, offset] = batch.positions
    visible = columns <= positions[:, :, None]
    if window is not None:
        visible &= columns > positions[:, :, None] - window

    output = scaled_dot_product_attention(
        queries.transpose(1, 2),
        keys.transpose(1, 2),
        values.transpose(1, 2),
        attn_mask=visible[:, None],
        scale=scale,
        enable_gqa=True,
    )
    return output.transpose(1, 2)[request, offset]
