"""Faults of pages: their order, their numbers, their size, and what stands where nobody should read."""

from __future__ import annotations

import torch
from torch import Tensor

from detharness.kernels.contract import PagedBatch
from detharness.kernels.mutants.faulty import Fault, FaultyKernels
from detharness.kernels.mutants.orders import attention_in_pieces, blocks, request_rows
from detharness.kernels.mutants.products import rounded_to_int8
from detharness.kernels.mutants.tiling import CutAttention, context


def behind_context(batch: PagedBatch, request: int) -> Tensor:
    """Slots of the request's last page that it has not written."""
    page, offset = divmod(context(batch, request) - 1, batch.page_size)
    first = int(batch.block_tables[request, page]) * batch.page_size
    return torch.arange(first + offset + 1, first + batch.page_size)


class PagesInPoolOrder(CutAttention):
    """Pages are added up in the order in which they lie in the pool."""

    fault = Fault("pages-in-pool-order", (), "attention", ("page_placement",))

    def pieces(self, batch: PagedBatch, request: int) -> list[Tensor] | None:
        """One page each, ascending by number, where that is not the order of the tokens."""
        size = batch.page_size
        pages = batch.block_tables[request][: -(-context(batch, request) // size)]
        order = torch.argsort(pages)
        if torch.equal(order, torch.arange(len(pages))):
            return None
        return [torch.arange(int(page) * size, (int(page) + 1) * size) for page in order]


class PageNumberRead(CutAttention):
    """The first block ends where the page's address is aligned, so odd pages are cut differently."""

    fault = Fault("page-number-read", (), "attention", ("page_placement",))

    def pieces(self, batch: PagedBatch, request: int) -> list[Tensor] | None:
        """Blocks of 16 for a request whose first page has an odd number."""
        return blocks(context(batch, request), 16) if int(batch.block_tables[request, 0]) % 2 else None


class BlockOfPageSize(CutAttention):
    """The block of the running softmax is a page."""

    fault = Fault("block-of-page-size", (), "attention", ("page_size",))

    def pieces(self, batch: PagedBatch, request: int) -> list[Tensor] | None:
        """Blocks of a page."""
        return blocks(context(batch, request), batch.page_size)


class _PoolReader(FaultyKernels):
    """Attention that adds what it reads at ``strangers``, weighed with nothing: 0 x NaN is NaN."""

    def strangers(self, batch: PagedBatch, request: int) -> Tensor:
        """Slots of the flat pool that the request does not own."""
        raise NotImplementedError

    def attention(
        self, q: Tensor, k_pages: Tensor, v_pages: Tensor, batch: PagedBatch, scale: float, window: int | None
    ) -> Tensor:
        """See the contract."""
        out = self.sound.attention(q, k_pages, v_pages, batch, scale, window)
        pool = v_pages.view(-1, *v_pages.shape[2:])
        for request in range(len(batch.context_lens)):
            read = (0.0 * pool[self.strangers(batch, request)]).sum(dim=0)
            out[request_rows(batch, request)] += read.repeat_interleave(q.shape[1] // pool.shape[1], dim=0)
        return out


class LastPageReadWhole(_PoolReader):
    """The last page is loaded whole, and what stands behind the context is weighed with zero."""

    fault = Fault(
        "last-page-read-whole", ("flash-attention#1745", "flash-attention#2374"), "attention", ("page_placement",)
    )

    def strangers(self, batch: PagedBatch, request: int) -> Tensor:
        """The slots behind the context."""
        return behind_context(batch, request)


class NeighboursNan(_PoolReader):
    """Padding of the block table is read as a page, so that somebody else's NaN leaks in."""

    fault = Fault("neighbours-nan", ("flashinfer#942",), "attention", ("page_placement",))

    def strangers(self, batch: PagedBatch, request: int) -> Tensor:
        """The pool's last page, which -1 means to an index, where the table is padded."""
        padded = bool((batch.block_tables[request] < 0).any())
        return torch.arange(-batch.page_size, 0) if padded else torch.arange(0)


class StaleTailInMaximum(FaultyKernels):
    """The softmax takes its maximum over the whole last page, and masks what is behind the context only afterwards."""

    fault = Fault("stale-tail-in-maximum", ("vllm#53856", "vllm#50603"), "attention", ("page_placement",))

    def attention(
        self, q: Tensor, k_pages: Tensor, v_pages: Tensor, batch: PagedBatch, scale: float, window: int | None
    ) -> Tensor:
        """See the contract."""
        out = torch.empty_like(q)
        keys = k_pages.view(-1, *k_pages.shape[2:])
        for request in range(len(batch.context_lens)):
            rows, stale = request_rows(batch, request), keys[behind_context(batch, request)].float()
            scores = q[rows].float()[:, :, None] * stale.repeat_interleave(q.shape[1] // keys.shape[1], 1).movedim(0, 1)
            floor = (scores.sum(dim=-1) * scale).amax(dim=-1) if len(stale) else None
            pieces = blocks(context(batch, request), 64)
            out[rows] = attention_in_pieces(q[rows], k_pages, v_pages, batch, request, scale, window, pieces, floor)
        return out


class KvScaleOfStep(FaultyKernels):
    """Keys and values are stored in eight bits with one scale for all rows of the step."""

    fault = Fault("kv-scale-of-step", ("sglang#35938",), "write_kv", ("content",))

    def write_kv(self, k: Tensor, v: Tensor, k_pages: Tensor, v_pages: Tensor, slots: Tensor) -> None:
        """See the contract."""
        self.sound.write_kv(rounded_to_int8(k), rounded_to_int8(v), k_pages, v_pages, slots)


class PaddingRowsWritten(FaultyKernels):
    """Rows are padded to a multiple of eight, and the padding is written too, behind the last row's slot."""

    fault = Fault("padding-rows-written", ("tt-metal#56324", "tokenspeed#969"), "write_kv", ("page_placement",))

    def write_kv(self, k: Tensor, v: Tensor, k_pages: Tensor, v_pages: Tensor, slots: Tensor) -> None:
        """See the contract."""
        pool = k_pages.shape[0] * k_pages.shape[1]
        padding = torch.arange(-len(slots) % 8) + slots[-1] + 1
        padding = padding[padding < pool]
        nothing = torch.zeros_like(k[:1]).expand(len(padding), -1, -1)
        self.sound.write_kv(nothing, nothing, k_pages, v_pages, padding)
        self.sound.write_kv(k, v, k_pages, v_pages, slots)
