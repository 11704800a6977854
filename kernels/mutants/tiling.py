"""Faulty attention: the keys of a request are cut by who else is in the step, or by how its own rows are grouped."""

from __future__ import annotations

import torch
from torch import Tensor

from detharness.kernels.contract import PagedBatch
from detharness.kernels.mutants.faulty import Fault, FaultyKernels
from detharness.kernels.mutants.orders import attention_in_pieces, blocks, request_rows


class CutAttention(FaultyKernels):
    """Attention that works through a request's keys in the pieces of ``pieces``; None: as the sound kernels do."""

    def pieces(self, batch: PagedBatch, request: int) -> list[Tensor] | None:
        """The request's key positions, piece by piece."""
        raise NotImplementedError

    def attention(
        self, q: Tensor, k_pages: Tensor, v_pages: Tensor, batch: PagedBatch, scale: float, window: int | None
    ) -> Tensor:
        """See the contract."""
        out = self.sound.attention(q, k_pages, v_pages, batch, scale, window)
        for request in range(len(batch.context_lens)):
            pieces = self.pieces(batch, request)
            if pieces is not None:
                rows = request_rows(batch, request)
                out[rows] = attention_in_pieces(q[rows], k_pages, v_pages, batch, request, scale, window, pieces)
        return out


def rows_of(batch: PagedBatch, request: int) -> int:
    """How many rows the request brings to the step."""
    rows = request_rows(batch, request)
    return int(rows.stop) - int(rows.start)


def first_position(batch: PagedBatch, request: int) -> int:
    """Where the request's rows of the step begin."""
    return int(batch.positions[request_rows(batch, request).start])


def context(batch: PagedBatch, request: int) -> int:
    """Tokens of the request in the cache, those of the step included."""
    return int(batch.context_lens[request])


class SplitsByBatch(CutAttention):
    """The number of KV splits is what the device holds at once, divided by the batch."""

    fault = Fault("splits-by-batch", ("tokenspeed#904",), "attention", ("batch_size",))

    def pieces(self, batch: PagedBatch, request: int) -> list[Tensor] | None:
        """Blocks of 16 for one request, 32 for two or three."""
        splits = 4 // len(batch.context_lens)
        return blocks(context(batch, request), 64 // splits) if splits > 1 else None


class TileByLongestQuery(CutAttention):
    """One long prompt in the step switches every request to another tile."""

    fault = Fault("tile-by-longest-query", ("vllm#51902", "vllm#47069"), "attention", ("content",))

    def pieces(self, batch: PagedBatch, request: int) -> list[Tensor] | None:
        """Blocks of 16 once a request brings more than 64 rows."""
        longest = int((batch.row_starts[1:] - batch.row_starts[:-1]).max())
        return blocks(context(batch, request), 16) if longest > 64 else None


class TileByMeanQuery(CutAttention):
    """The tile follows the average number of rows a request brings."""

    fault = Fault("tile-by-mean-query", ("flashinfer#2424", "flashinfer#2830"), "attention", ("content",))

    def pieces(self, batch: PagedBatch, request: int) -> list[Tensor] | None:
        """Blocks of 16 beyond an average of 64 rows."""
        mean = len(batch.positions) / len(batch.context_lens)
        return blocks(context(batch, request), 16) if mean > 64 else None


class SplitByTableWidth(CutAttention):
    """The split is made for the longest request that the block table has room for."""

    fault = Fault("split-by-table-width", ("flashinfer#4647",), "attention", ("content",))

    def pieces(self, batch: PagedBatch, request: int) -> list[Tensor] | None:
        """Blocks of 16 where the table has room for more than 100 tokens."""
        room = batch.block_tables.shape[1] * batch.page_size
        return blocks(context(batch, request), 16) if room > 100 else None


class ChunkBorder(CutAttention):
    """What is in the cache and what is new are attended apart, then merged: the border is where the chunk begins."""

    fault = Fault("chunk-border", ("sglang#25479", "vllm#46592"), "attention", ("chunk",))

    def pieces(self, batch: PagedBatch, request: int) -> list[Tensor] | None:
        """The cached keys as one piece, then blocks from the chunk's start."""
        start = first_position(batch, request)
        if start == 0 or rows_of(batch, request) == 1:
            return None
        return [torch.arange(start), *blocks(context(batch, request), 16, start)]


class DecodeKernel(CutAttention):
    """Decoded rows have a kernel of their own, so what it computed comes out differently when it is computed again."""

    fault = Fault("decode-kernel", ("vllm#16832", "onnxruntime-genai#2418"), "attention", ("preemption", "chunk"))

    def pieces(self, batch: PagedBatch, request: int) -> list[Tensor] | None:
        """Blocks of 16 for a request that brings one row."""
        return blocks(context(batch, request), 16) if rows_of(batch, request) == 1 else None
