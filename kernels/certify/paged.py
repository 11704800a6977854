"""Attention probes: a row sees its own keys, whatever company, pages and chunks it comes in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from detharness.kernels.certify.rows import Finding, bits
from detharness.kernels.contract import KernelSet, PagedBatch
from detharness.kernels.threads import intraop_threads

# (context, rows of this step): decodes on both sides of the KV grid of 64 tokens, chunks over it, a whole prompt.
REQUESTS = ((1, 1), (63, 1), (64, 1), (65, 1), (130, 1), (66, 3), (129, 17), (70, 70), (5, 2))
# (query heads, key heads, head size, window).
SHAPES = ((9, 3, 64, None), (4, 4, 24, None), (4, 1, 128, None), (6, 2, 64, 21))


@dataclass(frozen=True)
class _Layout:
    """How requests lie in the pool; none of it may be seen."""

    page_size: int = 16
    permuted: bool = False
    poison: float = torch.nan


class PagedProbe:
    """One shape and dtype under every layout, in every company."""

    def __init__(
        self, kernels: KernelSet, shape: tuple[int, int, int, int | None], dtype: torch.dtype, name: str
    ) -> None:
        self._kernels = kernels
        self._heads, self._kv_heads, self._width, self._window = shape
        self._dtype = dtype
        window = "" if self._window is None else f" window {self._window}"
        self.name = f"attention {name} {self._heads}/{self._kv_heads}x{self._width}{window}"
        generator = torch.Generator().manual_seed(20261204)

        def normal(tokens: int, heads: int) -> Tensor:
            return torch.randn(tokens, heads, self._width, generator=generator).to(dtype)

        self._queries = [normal(context, self._heads) for context, _ in REQUESTS]
        self._keys = [normal(context, self._kv_heads) for context, _ in REQUESTS]
        self._values = [normal(context, self._kv_heads) for context, _ in REQUESTS]

    def find(self, threads: Sequence[int]) -> Finding:
        """Rows computed alone against the same rows in every other way; the first difference ends the probe."""
        cases, everyone = 0, range(len(REQUESTS))
        with intraop_threads(threads[0]):
            alone = {row: out for request in everyone for row, out in self._rows([request], _Layout()).items()}
        for count in threads:
            for what, requests, layout in (
                ("together", list(everyone), _Layout()),
                ("in another order", list(reversed(everyone)), _Layout()),
                ("on permuted pages", list(everyone), _Layout(permuted=True)),
                ("on pages of 5", list(everyone), _Layout(page_size=5, permuted=True)),
                ("on one page each", list(everyone), _Layout(page_size=256)),
                ("beside huge numbers", list(everyone), _Layout(poison=3.0e38)),
            ):
                with intraop_threads(count):
                    found = self._rows(requests, layout)
                cases += len(found)
                if failure := _first_difference(found, alone):
                    return Finding(self.name, cases, f"{what}, {count} threads: {failure}")
            with intraop_threads(count):
                single = self._one_by_one(alone)
            cases += len(single)
            if failure := _first_difference(single, alone):
                return Finding(self.name, cases, f"decoded one by one, {count} threads: {failure}")
        return Finding(self.name, cases, None)

    def _one_by_one(self, alone: dict[tuple[int, int], Tensor]) -> dict[tuple[int, int], Tensor]:
        found: dict[tuple[int, int], Tensor] = {}
        for request, position in alone:
            found.update(self._rows([request], _Layout(), only=position))
        return found

    def _rows(self, requests: list[int], layout: _Layout, only: int | None = None) -> dict[tuple[int, int], Tensor]:
        """Output bits by (request, position) of one call; ``only`` that position as a decode."""
        spans = {}
        for request in requests:
            context, new = REQUESTS[request]
            spans[request] = range(context - new, context) if only is None else range(only, only + 1)
        batch, keys, values = self._pool(spans, layout)
        queries = torch.cat([self._queries[request][span.start : span.stop] for request, span in spans.items()])
        out = bits(self._kernels.attention(queries, keys, values, batch, self._width**-0.5, self._window))
        names = [(request, position) for request, span in spans.items() for position in span]
        return dict(zip(names, out, strict=True))

    def _pool(self, spans: dict[int, range], layout: _Layout) -> tuple[PagedBatch, Tensor, Tensor]:
        size = layout.page_size
        pages = [-(-span.stop // size) for span in spans.values()]
        total = sum(pages) + 2
        order = list(range(1, total))
        if layout.permuted:
            order = [1 + index * 7919 % (total - 1) for index in range(total - 1)]
            order = list(dict.fromkeys(order + list(range(1, total))))
        shape = (total, size, self._kv_heads, self._width)
        keys = torch.full(shape, layout.poison).to(self._dtype)
        values = torch.full(shape, layout.poison).to(self._dtype)
        tables, taken = [], 0
        for (request, span), count in zip(spans.items(), pages, strict=True):
            table = order[taken : taken + count]
            taken += count
            for position in range(span.stop):
                page, offset = table[position // size], position % size
                keys[page, offset] = self._keys[request][position]
                values[page, offset] = self._values[request][position]
            tables.append(table + [-1] * (max(pages) - count))
        positions = torch.tensor([position for span in spans.values() for position in span])
        starts = torch.tensor([0, *(len(span) for span in spans.values())]).cumsum(0)
        batch = PagedBatch(
            positions=positions,
            slots=torch.zeros_like(positions),  # Nothing is written here.
            row_starts=starts,
            context_lens=torch.tensor([span.stop for span in spans.values()]),
            block_tables=torch.tensor(tables),
            page_size=size,
        )
        return batch, keys, values


def _first_difference(found: dict[tuple[int, int], Tensor], alone: dict[tuple[int, int], Tensor]) -> str | None:
    for (request, position), row in found.items():
        if not torch.equal(row, alone[request, position]):
            context = REQUESTS[request][0]
            return f"the row at position {position} of a context of {context} differs from the same row alone"
    return None
