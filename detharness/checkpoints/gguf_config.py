"""GGUF metadata of arch llama, qwen2 or qwen3 -> ``ModelConfig``, with notes on what was inferred."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from detharness.checkpoints.config import MAX_LAYERS, MAX_SIZE, Family, ModelConfig, RopeConfig, is_finite_number
from detharness.checkpoints.config_json import check_sizes
from detharness.errors import CheckpointError

ARCHITECTURES: dict[str, Family] = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}

# Values that change the arithmetic when they differ from the neutral one; the decoder has none of them.
_NEUTRAL: dict[str, float] = {
    "expert_count": 0,
    "attention.causal": 1,
    "attention.scale": 0,
    "attention.clamp_kqv": 0,
    "attention.max_alibi_bias": 0,
    "attention.sliding_window_pattern": 0,
    "logit_scale": 0,
    "residual_scale": 0,
    "embedding_scale": 0,
    "attn_logit_softcapping": 0,
    "final_logit_softcapping": 0,
    "use_parallel_residual": 0,
    "rope.scaling.alpha": 0,
    "rope.scaling.yarn_log_multiplier": 0,
    "rope.scaling.attn_factor": 1,
    "rope.scaling.yarn_attn_factor": 1,
}
_READ = (
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "vocab_size",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "attention.sliding_window",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scale_linear",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.finetuned",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "rope.scaling.yarn_ext_factor",
    "tensor_data_layout",
)


def parse_gguf_config(
    metadata: Mapping[str, Any], tensor_shapes: Mapping[str, tuple[int, ...]], rope_factors: Any, where: str
) -> tuple[ModelConfig, tuple[str, ...]]:
    """Normalise GGUF metadata; ``where`` names the file in messages.

    ``metadata``: key -> Python value. ``tensor_shapes``: GGUF tensor name -> shape, rows first. ``rope_factors``:
    the fp32 values of ``rope_freqs.weight``, or None. Returns the config and notes. The norm epsilon stays the
    fp32 number that the file holds.
    """
    arch = metadata.get("general.architecture")
    kind = metadata.get("general.type", "model")
    if kind != "model":
        raise CheckpointError(f"{where} holds a GGUF {kind!r}, not a model: give the model's own file")
    if arch not in ARCHITECTURES:
        raise CheckpointError(
            f"{where}: the GGUF architecture {arch!r} is not supported (supported: {', '.join(ARCHITECTURES)}): use "
            "another model"
        )
    split_count = metadata.get("split.count", 0)
    if isinstance(split_count, int) and split_count > 1:
        raise CheckpointError(
            f"{where} is one of {metadata['split.count']} parts of a sharded GGUF, which is not supported: join them "
            "with 'llama-gguf-split --merge'"
        )
    reader = _Metadata(metadata, arch, where)
    notes = reader.check_known()
    family = ARCHITECTURES[arch]
    heads = reader.integer("attention.head_count")
    hidden = reader.integer("embedding_length")
    layers = reader.integer("block_count")
    context = reader.integer("context_length")
    head_dim = _head_dim(reader, hidden, heads)
    rope, context = _rope(reader, context, head_dim, notes)
    if rope_factors is not None:
        rope = _rope_from_factors(rope, rope_factors, head_dim, where, notes)
    embedding = tensor_shapes.get("token_embd.weight")
    vocab_size = reader.optional_integer("vocab_size")
    if vocab_size is None:
        if embedding is None:
            raise CheckpointError(f"{where}: the tensor token_embd.weight is missing: fetch the file again")
        vocab_size = embedding[0]
    tied = "output.weight" not in tensor_shapes
    notes.append(
        "output.weight is " + ("absent, so the head is the embedding" if tied else "present, so it is the head")
    )
    config = ModelConfig(
        family=family,
        num_layers=layers,
        hidden_size=hidden,
        intermediate_size=reader.integer("feed_forward_length"),
        num_heads=heads,
        num_kv_heads=reader.optional_integer("attention.head_count_kv") or heads,
        head_dim=head_dim,
        vocab_size=vocab_size,
        max_positions=context,
        rms_eps=reader.number("attention.layer_norm_rms_epsilon"),
        tie_embeddings=tied,
        qkv_bias=family == "qwen2" or "blk.0.attn_q.bias" in tensor_shapes,
        output_bias="blk.0.attn_output.bias" in tensor_shapes,
        mlp_bias="blk.0.ffn_gate.bias" in tensor_shapes,
        qk_norm=family == "qwen3",
        windows=_windows(reader, family, layers, context, notes),
        rope=rope,
    )
    check_sizes(config, where)
    return config, tuple(notes)


class _Metadata:
    """Typed access to the keys under one architecture's prefix."""

    def __init__(self, values: Mapping[str, Any], arch: str, where: str) -> None:
        self._prefix = f"{arch}."
        self._values = values
        self._where = where

    def get(self, key: str) -> Any:
        return self._values.get(self._prefix + key)

    def error(self, key: str, problem: str, remedy: str = "fetch another file") -> CheckpointError:
        return CheckpointError(f"{self._where}: {self._prefix}{key} {problem}: {remedy}")

    def optional_number(self, key: str) -> float | None:
        value = self.get(key)
        if value is None:
            return None
        if not is_finite_number(value):
            raise self.error(key, f"must be one finite number, got {value!r}")
        return float(value)

    def number(self, key: str) -> float:
        value = self.optional_number(key)
        if value is None:
            raise self.error(key, "is missing")
        return value

    def optional_integer(self, key: str) -> int | None:
        value = self.get(key)
        if isinstance(value, list) and value and all(item == value[0] for item in value):
            value = value[0]  # Some writers repeat one value per layer.
        if value is None:
            return None
        if isinstance(value, list):
            raise self.error(key, "differs between layers, which is not supported", "use another model")
        most = MAX_LAYERS if key == "block_count" else MAX_SIZE
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise self.error(key, f"must be a whole number from 1 to {most}, got {value!r}")
        return value

    def integer(self, key: str) -> int:
        value = self.optional_integer(key)
        if value is None:
            raise self.error(key, "is missing")
        return value

    def check_known(self) -> list[str]:
        """Refuse values that change the arithmetic; return notes on keys that are not known at all."""
        for key, neutral in _NEUTRAL.items():
            value = self.get(key)
            if value is not None and value != neutral:
                raise self.error(key, f"is {value!r}, which is not supported", "use another model")
        unknown = sorted(
            key
            for key in self._values
            if key.startswith(self._prefix) and key.removeprefix(self._prefix) not in (*_READ, *_NEUTRAL)
        )
        return [f"metadata not used: {', '.join(unknown)}"] if unknown else []


def _head_dim(reader: _Metadata, hidden: int, heads: int) -> int:
    key_length = reader.optional_integer("attention.key_length")
    value_length = reader.optional_integer("attention.value_length")
    if key_length is None:
        if hidden % heads:
            raise reader.error("attention.key_length", f"is missing and {hidden} is not a multiple of {heads} heads")
        key_length = hidden // heads
    if value_length is not None and value_length != key_length:
        raise reader.error(
            "attention.value_length", f"is {value_length}, not the key length {key_length}, which is not supported"
        )
    rotary = reader.optional_integer("rope.dimension_count")
    if rotary is not None and rotary != key_length:
        raise reader.error("rope.dimension_count", f"is {rotary}, not the head size {key_length}: not supported")
    return key_length


def _windows(reader: _Metadata, family: Family, layers: int, context: int, notes: list[str]) -> tuple[int | None, ...]:
    window = reader.get("attention.sliding_window")
    if window is None or window == 0:
        return (None,) * layers
    window = reader.integer("attention.sliding_window")
    if window >= context:
        notes.append(f"sliding window {window} covers the whole context: full attention")
        return (None,) * layers
    if family != "llama":
        raise reader.error(
            "attention.sliding_window",
            f"is {window}, but the file does not say which layers use it",
            "use the HF folder",
        )
    notes.append(f"sliding window {window} in every layer")
    return (window,) * layers


def _rope(reader: _Metadata, context: int, head_dim: int, notes: list[str]) -> tuple[RopeConfig, int]:
    theta = reader.optional_number("rope.freq_base")
    if theta is None or theta <= 0:
        raise reader.error("rope.freq_base", "is missing or not above 0, and is never guessed")
    kind = reader.get("rope.scaling.type") or "none"
    factor = reader.optional_number("rope.scaling.factor")
    legacy = reader.optional_number("rope.scale_linear")
    if kind == "none" or (kind == "linear" and factor is None):
        if kind == "none" and factor not in (None, 0.0, 1.0):
            raise reader.error("rope.scaling.factor", f"is {factor:g} but no scaling type is named")
        if legacy in (None, 0.0, 1.0):
            return RopeConfig(theta=theta), context
        return RopeConfig(theta=theta, kind="linear", factor=legacy), context
    if kind not in ("linear", "yarn"):
        raise reader.error("rope.scaling.type", f"{kind!r} is not supported", "use another model")
    if factor is None or factor <= 0:
        raise reader.error("rope.scaling.factor", f"must be above 0 for {kind} scaling")
    if kind == "linear":
        return RopeConfig(theta=theta, kind="linear", factor=factor), context
    if theta <= 1:
        raise reader.error("rope.freq_base", f"must be above 1 for yarn scaling, got {theta:g}")
    mixing = reader.optional_number("rope.scaling.yarn_ext_factor")
    if mixing not in (None, 1.0, -1.0):  # -1 asks for the default, which is 1 under yarn.
        raise reader.error("rope.scaling.yarn_ext_factor", f"is {mixing:g}, which is not supported")
    original = reader.optional_integer("rope.scaling.original_context_length")
    if original is None:
        notes.append(
            f"rope: yarn scaling without an original context length, so the context ({context}) is taken for it"
        )
    elif int(original * factor) > context:
        notes.append(f"context length {int(original * factor)} from yarn (original length x factor), not {context}")
        context = int(original * factor)
    rope = RopeConfig(
        theta=theta,
        kind="yarn",
        factor=factor,
        original_max_positions=context if original is None else original,
        beta_fast=reader.optional_number("rope.scaling.yarn_beta_fast") or 32.0,
        beta_slow=reader.optional_number("rope.scaling.yarn_beta_slow") or 1.0,
        truncate=True,
    )
    return rope, context


def _rope_from_factors(rope: RopeConfig, factors: Any, head_dim: int, where: str, notes: list[str]) -> RopeConfig:
    """Recover the scaling that ``rope_freqs.weight`` encodes: one divisor per pair, written for Llama 3.1 scaling."""
    values = np.asarray(factors, dtype=np.float64).reshape(-1)
    if values.shape != (head_dim // 2,) or not np.isfinite(values).all() or values.min() <= 0:
        raise CheckpointError(
            f"{where}: rope_freqs.weight must hold {head_dim // 2} numbers above 0: fetch the file again"
        )
    if (values == 1).all():
        return rope
    if rope.kind != "default":
        raise CheckpointError(f"{where}: rope_freqs.weight and {rope.kind} scaling together are not supported")
    candidate = replace(
        rope,
        kind="llama3",
        factor=float(values.max()),
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_positions=8192,
    )
    # The writer computed these in fp64 or fp32 and stored fp32; 1e-4 is far above that and far below another setting.
    if not np.allclose(values, _llama3_divisors(candidate, head_dim), rtol=1e-4, atol=0):
        raise CheckpointError(
            f"{where}: rope_freqs.weight does not match Llama 3.1 scaling, the only kind supported: use another model"
        )
    notes.append(f"rope: rope_freqs.weight is Llama 3.1 scaling with factor {candidate.factor:g}")
    return candidate


def _llama3_divisors(rope: RopeConfig, head_dim: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """What the llama.cpp converter writes for Llama 3.1 scaling; used only to recognise it, never to compute."""
    factor, original = rope.factor or 1.0, float(rope.original_max_positions or 0)
    low, high = rope.low_freq_factor or 0.0, rope.high_freq_factor or 0.0
    wavelengths = 2 * math.pi * np.power(rope.theta, np.arange(0, head_dim, 2) / head_dim)
    smooth = np.clip((original / wavelengths - low) / (high - low), 0.0, 1.0)
    return np.asarray(1 / ((1 - smooth) / factor + smooth))
