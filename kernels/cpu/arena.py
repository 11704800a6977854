"""Memory for packed weights, in huge pages where the system gives them: they are read once per step, end to end."""

from __future__ import annotations

import mmap
from contextlib import suppress

import torch
from torch import Tensor

_CHUNK = 64 << 20
_HUGE_PAGE = 2 << 20
_ALIGN = 64  # A cache line, and the widest register.


class Arena:
    """Hands out zeroed tensors from large chunks; a chunk is unmapped when the last tensor in it dies.

    Pages are taken from the system when they are first written, so the unused end of a chunk costs nothing.
    """

    def __init__(self) -> None:
        self._chunk = torch.empty(0, dtype=torch.uint8)
        self._used = 0

    def zeros(self, size: int, dtype: torch.dtype) -> Tensor:
        """A zeroed tensor [size], 64-byte aligned; MemoryError where the system has none left."""
        length = size * dtype.itemsize
        if self._used + length > len(self._chunk):
            self._chunk, self._used = _chunk(max(length, _CHUNK)), 0
        piece = self._chunk[self._used : self._used + length]
        self._used += -(-length // _ALIGN) * _ALIGN
        return piece.view(dtype)


def _chunk(length: int) -> Tensor:
    """At least ``length`` zeroed bytes from the start of a huge page."""
    try:
        size = -(-length // _HUGE_PAGE) * _HUGE_PAGE + _HUGE_PAGE
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # Shared ones get no huge pages.
    except OSError as error:
        raise MemoryError(f"no memory for {length} bytes of weights: {error.strerror}") from error
    with suppress(OSError):  # A kernel without huge pages reads more slowly, and the same.
        memory.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    return whole[-whole.data_ptr() % _HUGE_PAGE :]
