"""Other orders of the same additions, for mutants to fall into: right to the last digits, and pure row by row.

Everything here is elementwise or goes through the sound kernels, so that nothing but the mutant's own choice between
two orders can move a bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from detharness.kernels.contract import KernelSet, PagedBatch, tree_plan
from detharness.kernels.elementary import exp32, tree_sum


def partial_products(sound: KernelSet, x: Tensor, packed: object, parts: int) -> list[Tensor]:
    """x [M, K] @ W in ``parts`` products over every ``parts``-th column of x; the bias is in the first alone."""
    bias = sound.linear(torch.zeros_like(x[:1]), packed)
    products = []
    for part in range(parts):
        columns = torch.zeros_like(x)
        columns[:, part::parts] = x[:, part::parts]
        product = sound.linear(columns, packed)
        products.append(product if part == 0 else product - bias)
    return products


def split_product(sound: KernelSet, x: Tensor, packed: object, parts: int) -> Tensor:
    """x [M, K] @ W as split-K computes it: ``parts`` partial sums, added in turn; 1 is the sound product itself."""
    if parts == 1 or not len(x):
        return sound.linear(x, packed)
    total, *rest = partial_products(sound, x, packed, parts)
    for product in rest:
        total = total + product
    return total


def norm_in_lanes(sound: KernelSet, x: Tensor, weight: Tensor, eps: float, lanes: int) -> Tensor:
    """RMSNorm of x [..., K] whose sum of squares runs over the columns dealt out to ``lanes``."""
    order = torch.cat([torch.arange(lane, x.shape[-1], lanes) for lane in range(lanes)])
    mixed = sound.rms_norm(x[..., order].contiguous(), weight[order].contiguous(), eps)
    return mixed[..., torch.argsort(order)]


def request_rows(batch: PagedBatch, request: int) -> slice:
    """The rows of one request in the step."""
    return slice(int(batch.row_starts[request]), int(batch.row_starts[request + 1]))


def slots_of(batch: PagedBatch, request: int, positions: Tensor) -> Tensor:
    """Where the request's keys and values at these positions stand in the flat pool."""
    pages = batch.block_tables[request][positions // batch.page_size]
    return pages * batch.page_size + positions % batch.page_size


def attention_in_pieces(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    batch: PagedBatch,
    request: int,
    scale: float,
    window: int | None,
    pieces: Sequence[Tensor],
    floor: Tensor | None = None,
) -> Tensor:
    """Attention of one request's rows q [m, H, D], its keys worked through piece by piece with a running softmax.

    A piece holds absolute positions; those that a row may not see weigh exactly nothing, and those past the request's
    context are never read. The sums inside a piece depend on its length alone. ``floor`` [m, H]: where the running
    maximum starts, if not at nothing.
    """
    rows, heads, width = q.shape
    kv_heads, end = k_pages.shape[2], int(batch.context_lens[request])
    at = batch.positions[request_rows(batch, request)][:, None]
    best = torch.full((rows, heads), -math.inf) if floor is None else floor
    total, mixed = torch.zeros(rows, heads), torch.zeros(rows, heads, width)
    for piece in pieces:
        slots = slots_of(batch, request, piece.clamp_max(end - 1))
        keys, values = (
            pages.view(-1, kv_heads, width)[slots].float().repeat_interleave(heads // kv_heads, dim=1)
            for pages in (k_pages, v_pages)
        )
        visible = piece <= at
        if window is not None:
            visible &= piece > at - window
        products = q.float()[:, None] * keys  # [m, n, H, D]
        scores = tree_sum(products, tree_plan("mutant", width, "halving")).movedim(1, 2) * scale
        scores = scores.masked_fill(~visible[:, None], -math.inf)  # [m, H, n]
        after = torch.maximum(best, scores.amax(dim=-1))
        base = torch.where(after == -math.inf, 0.0, after)
        keep, weights = exp32(best - base), exp32(scores - base[..., None])
        plan = tree_plan("mutant", len(piece), "halving")
        total = total * keep + tree_sum(weights, plan)
        weighed = weights.movedim(2, 1)[..., None] * values
        mixed = mixed * keep[..., None] + tree_sum(weighed.movedim(1, -1).contiguous(), plan)
        best = after
    return (mixed / total[..., None] + 0.0).to(q.dtype)


def blocks(context: int, length: int, start: int = 0) -> list[Tensor]:
    """Positions below ``context`` in blocks of ``length`` from ``start`` on; the last one is always whole."""
    return [torch.arange(first, first + length) for first in range(start, context, length)]
