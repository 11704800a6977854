"""torch's intra-op threads, for the length of a block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def intraop_threads(count: int | None) -> Iterator[None]:
    """Give torch ``count`` intra-op threads inside; None leaves them as they are."""
    before = torch.get_num_threads()
    if count is None or count == before:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
