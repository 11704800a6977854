"""The block pool: which KV pages are free, owned, shared or cached. Integers only; the tensors live in ``pages``.

Full pages are found again by a hash chain: a page's key covers its own tokens and its parent's key, down to a
fixed root, so a hit means an equal prefix. Cached pages that nobody owns are evicted least recently used first,
by logical step, ties by page number, highest first: pages are handed out in ascending order by default, so the head
of a chain, which serves the most requests, mostly outlives its tail. No clock and no set decides anything.
"""

from __future__ import annotations

import bisect
import hashlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from detharness.engine.params import PagePlacement

CHAIN_ROOT = hashlib.sha256(b"detharness prefix cache root").digest()


def page_key(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """Key of a full page: sha256 over the parent page's key and this page's token ids."""
    return hashlib.sha256(parent + b"".join(token.to_bytes(8, "little") for token in token_ids)).digest()


@dataclass
class _Page:
    owners: int = 0
    key: bytes | None = None
    last_used: int = 0


class BlockPool:
    """Hands out pages of ``page_size`` tokens. ``on_release`` is told each page whose content became dead."""

    def __init__(
        self,
        num_blocks: int,
        page_size: int,
        placement: PagePlacement,
        placement_seed: int,
        on_release: Callable[[int], None],
    ) -> None:
        self.num_blocks = num_blocks
        self.page_size = page_size
        self._pages = [_Page() for _ in range(num_blocks)]
        self._by_key: dict[bytes, int] = {}
        self._idle: dict[int, None] = {}  # Cached pages nobody owns; insertion order is not read.
        self._on_release = on_release
        order = list(range(num_blocks))
        if placement is PagePlacement.PERMUTED:
            random.Random(placement_seed).shuffle(order)
        self._rank = {page: rank for rank, page in enumerate(order)}
        # Popped from the end, so the list is kept in descending rank.
        self._unused = order[::-1]

    @property
    def available(self) -> int:
        """Pages that can be handed out now: unused ones, and cached ones that nobody owns."""
        return len(self._unused) + len(self._idle)

    def allocate(self, step: int) -> int | None:
        """Take one page for writing, evicting a cached page if need be; None when every page is owned."""
        if self._unused:
            page = self._unused.pop()
        else:
            if not self._idle:
                return None
            page = min(self._idle, key=lambda candidate: (self._pages[candidate].last_used, -candidate))
            del self._idle[page]
            key = self._pages[page].key
            assert key is not None
            del self._by_key[key]
            self._pages[page].key = None
            self._on_release(page)
        self._pages[page].owners = 1
        self._pages[page].last_used = step
        return page

    def match(self, token_ids: Sequence[int], step: int) -> list[int]:
        """Own and return the longest chain of cached pages for the head of ``token_ids``.

        The last token is never matched: its row must be computed to get logits.
        """
        matched: list[int] = []
        parent = CHAIN_ROOT
        for start in range(0, (len(token_ids) - 1) // self.page_size * self.page_size, self.page_size):
            parent = page_key(parent, token_ids[start : start + self.page_size])
            page = self._by_key.get(parent)
            if page is None:
                break
            self._pages[page].owners += 1
            self._pages[page].last_used = step
            self._idle.pop(page, None)
            matched.append(page)
        return matched

    def register(self, page: int, key: bytes) -> None:
        """Make a full, computed page findable. The first page under a key keeps it."""
        if key not in self._by_key and self._pages[page].key is None:
            self._by_key[key] = page
            self._pages[page].key = key

    def release(self, pages: Sequence[int], step: int) -> None:
        """Give up ownership; a page without owners and without a key goes back to the unused list."""
        for page in pages:
            state = self._pages[page]
            assert state.owners > 0, f"page {page} released without an owner"
            state.owners -= 1
            state.last_used = step
            if state.owners > 0:
                continue
            if state.key is None:
                bisect.insort(self._unused, page, key=lambda unused: -self._rank[unused])
                self._on_release(page)
            else:
                self._idle[page] = None
