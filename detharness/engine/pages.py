"""The KV pages themselves: one pair of tensors per layer, and the poison that proves what is never read."""

from __future__ import annotations

import torch
from torch import Tensor

from detharness.checkpoints.config import ModelConfig
from detharness.engine.params import EngineConfig, FreePages
from detharness.errors import CapacityError

AUTO_BYTES = 2 * 1024**3


def bytes_per_block(config: ModelConfig, page_size: int, dtype: torch.dtype) -> int:
    """Bytes of one page over all layers, keys and values."""
    return 2 * config.num_layers * page_size * config.num_kv_heads * config.head_dim * dtype.itemsize


def resolve_num_blocks(model: ModelConfig, engine: EngineConfig, dtype: torch.dtype) -> int:
    """The explicit number of blocks, or an automatic one: every sequence at full context, within 2 GiB."""
    if engine.num_blocks is not None:
        return engine.num_blocks
    per_sequence = -(-model.max_positions // engine.page_size)
    affordable = AUTO_BYTES // bytes_per_block(model, engine.page_size, dtype)
    if affordable < 1:
        raise CapacityError(
            f"one KV page of {engine.page_size} tokens exceeds the automatic pool of 2 GiB: set num_blocks"
        )
    return min(per_sequence * engine.max_running, affordable)


class KVPages:
    """``keys[layer]`` and ``values[layer]``: [num_blocks, page_size, Hkv, D]."""

    def __init__(self, config: ModelConfig, num_blocks: int, page_size: int, dtype: torch.dtype, free: FreePages):
        shape = (num_blocks, page_size, config.num_kv_heads, config.head_dim)
        self._poison = free is FreePages.NAN
        fill = float("nan") if self._poison else 0.0
        try:
            self.keys = [self._filled(shape, dtype, fill) for _ in range(config.num_layers)]
            self.values = [self._filled(shape, dtype, fill) for _ in range(config.num_layers)]
        except RuntimeError as error:  # torch reports a failed allocation as RuntimeError
            raise CapacityError(
                f"{num_blocks} KV pages of {page_size} tokens do not fit in memory: lower num_blocks"
            ) from error

    @staticmethod
    def _filled(shape: tuple[int, ...], dtype: torch.dtype, fill: float) -> Tensor:
        return torch.zeros(shape, dtype=dtype) if fill == 0.0 else torch.full(shape, fill, dtype=dtype)

    def on_release(self, page: int) -> None:
        """Poison a page whose content is dead, so that a later read of an unwritten slot shows."""
        if self._poison:
            for tensor in (*self.keys, *self.values):
                tensor[page] = float("nan")
