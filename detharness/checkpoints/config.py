"""A decoder's architecture, normalised from ``config.json`` or GGUF metadata."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Family = Literal["llama", "mistral", "qwen2", "qwen3"]


MAX_LAYERS = 10_000  # Far above any model; a damaged count must not ask for memory before it is refused.
MAX_SIZE = 2**31 - 1


def is_finite_number(value: object) -> bool:
    """Whether a value read from a file is a number that fp64 holds; true and false are not numbers here."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -1e308 < value < 1e308


@dataclass(frozen=True, kw_only=True)
class RopeConfig:
    """Rotary embedding: base ``theta`` and one scaling kind with the fields it reads (others stay None)."""

    theta: float
    kind: Literal["default", "linear", "llama3", "yarn"] = "default"
    factor: float | None = None
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    original_max_positions: int | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool | None = None


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Everything the decoder needs; sizes in elements. ``windows[i]``: sliding window of layer i, None = full.

    A window of N attends the current token and the N - 1 before it (transformers' convention).
    """

    family: Family
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_positions: int
    rms_eps: float
    tie_embeddings: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    windows: tuple[int | None, ...]
    rope: RopeConfig
