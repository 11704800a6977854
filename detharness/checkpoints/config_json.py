"""``config.json`` of a Llama, Mistral, Qwen2 or Qwen3 folder -> ``ModelConfig``, with notes on what was inferred."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from detharness.checkpoints.config import MAX_LAYERS, MAX_SIZE, Family, ModelConfig, is_finite_number
from detharness.checkpoints.rope_json import parse_rope
from detharness.errors import CheckpointError

FAMILIES: tuple[Family, ...] = ("llama", "mistral", "qwen2", "qwen3")

# What transformers' configuration class takes when the key is absent. Only fields whose absence is common and
# harmless stand here: every size that the tensors cannot confirm must be written in the file.
_TIED_BY_DEFAULT: dict[Family, bool] = {"llama": False, "mistral": False, "qwen2": False, "qwen3": False}
_MISTRAL_WINDOW = 4096
_QWEN_WINDOW = 4096
_QWEN_MAX_WINDOW_LAYERS = 28
_QWEN3_HEAD_DIM = 128


def parse_config(raw: Mapping[str, Any], where: str) -> tuple[ModelConfig, tuple[str, ...]]:
    """Normalise a parsed ``config.json``; ``where`` names the file in messages.

    Returns the config and notes on everything that was resolved rather than read. Unsupported architectures,
    quantised weights, and values that contradict each other raise ``CheckpointError``.
    """
    family = _family(raw, where)
    if raw.get("quantization_config") is not None:
        method = raw["quantization_config"]
        method = method.get("quant_method") if isinstance(method, Mapping) else None
        raise CheckpointError(
            f"{where}: the weights are quantised ({method or 'method not named'}), which is not supported: use the "
            "original checkpoint or a GGUF file"
        )
    activation = raw.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise CheckpointError(
            f"{where}: hidden_act {activation!r} is not supported (supported: silu): use another model"
        )
    notes: list[str] = []
    layers = _integer(raw, "num_hidden_layers", where, MAX_LAYERS)
    hidden = _integer(raw, "hidden_size", where)
    heads = _integer(raw, "num_attention_heads", where)
    max_positions = _integer(raw, "max_position_embeddings", where)
    windows = _windows(raw, family, layers, where, notes)
    used = tuple(
        name
        for name, present in (
            ("full_attention", any(window is None for window in windows)),
            ("sliding_attention", any(window is not None for window in windows)),
        )
        if present
    )
    parsed = parse_rope(raw, max_positions=max_positions, used_layer_types=used, where=where)
    notes.extend(parsed.notes)
    attention_bias = _flag(raw, "attention_bias", False, where)
    config = ModelConfig(
        family=family,
        num_layers=layers,
        hidden_size=hidden,
        intermediate_size=_integer(raw, "intermediate_size", where),
        num_heads=heads,
        num_kv_heads=_kv_heads(raw, family, heads, where),
        head_dim=_head_dim(raw, family, hidden, heads, where),
        vocab_size=_integer(raw, "vocab_size", where),
        max_positions=parsed.context_length,
        rms_eps=_epsilon(raw, where),
        tie_embeddings=_tie_flag(raw, family, where, notes),
        # Qwen2 has biases on Q, K and V and none on O by construction, whatever attention_bias says.
        qkv_bias=True if family == "qwen2" else attention_bias,
        output_bias=False if family == "qwen2" else attention_bias,
        mlp_bias=_flag(raw, "mlp_bias", False, where),
        qk_norm=family == "qwen3",
        windows=windows,
        rope=parsed.rope,
    )
    check_sizes(config, where)
    return config, tuple(notes)


def check_sizes(config: ModelConfig, where: str) -> None:
    """Refuse head counts that do not fit each other and an odd head size."""
    if config.num_heads % config.num_kv_heads:
        raise CheckpointError(
            f"{where}: {config.num_heads} attention heads cannot be shared evenly by {config.num_kv_heads} key/value "
            "heads: correct the file"
        )
    if config.head_dim % 2:
        raise CheckpointError(f"{where}: head_dim {config.head_dim} is odd, rotary embeddings need an even one")


def _family(raw: Mapping[str, Any], where: str) -> Family:
    model_type = raw.get("model_type")
    if model_type is None:
        if "peft_type" in raw:
            raise CheckpointError(f"{where}: this is an adapter, not a model: merge it into its base model first")
        raise CheckpointError(f"{where}: model_type is missing: add it (supported: {', '.join(FAMILIES)})")
    if model_type not in FAMILIES:
        raise CheckpointError(
            f"{where}: the architecture {model_type!r} is not supported (supported: {', '.join(FAMILIES)}): use "
            "another model"
        )
    return cast(Family, model_type)


def _integer(raw: Mapping[str, Any], key: str, where: str, most: int = MAX_SIZE) -> int:
    value = raw.get(key)
    if value is None:
        raise CheckpointError(f"{where}: {key} is missing: add it")
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise CheckpointError(
            f"{where}: {key} must be a whole number from 1 to {most}, got {value!r}: correct the file"
        )
    return value


def _flag(raw: Mapping[str, Any], key: str, default: bool, where: str) -> bool:
    value = raw.get(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise CheckpointError(f"{where}: {key} must be true or false, got {value!r}: correct the file")
    return value


def _epsilon(raw: Mapping[str, Any], where: str) -> float:
    value = raw.get("rms_norm_eps")
    if value is None:
        raise CheckpointError(f"{where}: rms_norm_eps is missing: add it")
    if not is_finite_number(value) or value < 0:
        raise CheckpointError(f"{where}: rms_norm_eps must be a number of at least 0, got {value!r}: correct the file")
    return float(value)


def _kv_heads(raw: Mapping[str, Any], family: Family, heads: int, where: str) -> int:
    # Llama-1 folders have no key/value head count; null means "as many as heads" in every family.
    if raw.get("num_key_value_heads") is None and (family == "llama" or "num_key_value_heads" in raw):
        return heads
    return _integer(raw, "num_key_value_heads", where)


def _head_dim(raw: Mapping[str, Any], family: Family, hidden: int, heads: int, where: str) -> int:
    if raw.get("head_dim") is not None:
        return _integer(raw, "head_dim", where)
    if family == "qwen3" and "head_dim" not in raw:
        return _QWEN3_HEAD_DIM
    if hidden % heads:
        raise CheckpointError(
            f"{where}: hidden_size {hidden} is not a multiple of {heads} heads and head_dim is not given: add head_dim"
        )
    return hidden // heads


def _tie_flag(raw: Mapping[str, Any], family: Family, where: str, notes: list[str]) -> bool:
    key = "tie_word_embeddings"
    nested = raw.get("text_config")
    places = {"the root": raw, "text_config": nested if isinstance(nested, Mapping) else {}}
    found = {place: _flag(values, key, False, where) for place, values in places.items() if values.get(key) is not None}
    if len(set(found.values())) > 1:
        raise CheckpointError(f"{where}: {key} differs between the root and text_config: keep one of them")
    if found:
        place, tied = next(iter(found.items()))
        if place != "the root":
            notes.append(f"{key} {str(tied).lower()} read from {place}")
        return tied
    tied = _TIED_BY_DEFAULT[family]
    notes.append(f"{key} is absent, so the {family} default holds: {str(tied).lower()}")
    return tied


def _windows(
    raw: Mapping[str, Any], family: Family, layers: int, where: str, notes: list[str]
) -> tuple[int | None, ...]:
    layer_types = raw.get("layer_types")
    if layer_types is not None:
        known = ("full_attention", "sliding_attention")
        if not isinstance(layer_types, list) or any(kind not in known for kind in layer_types):
            raise CheckpointError(f"{where}: layer_types must be a list of {' or '.join(known)}: use another model")
        if len(layer_types) != layers:
            raise CheckpointError(
                f"{where}: layer_types has {len(layer_types)} entries for {layers} layers: correct the file"
            )
    window = None if raw.get("sliding_window") is None else _integer(raw, "sliding_window", where)
    if family == "llama":
        # transformers' Llama has no window; converted Mistral folders carry the key without effect.
        if window is not None:
            notes.append(f"sliding_window {window} has no effect in a Llama model: full attention")
        windows: tuple[int | None, ...] = (None,) * layers
    elif family == "mistral":
        if "sliding_window" not in raw:
            window = _MISTRAL_WINDOW
            notes.append(f"sliding_window is absent, so the mistral default holds: {window}")
        windows = (window,) * layers
    else:
        windows = _qwen_windows(raw, layers, layer_types, window, where, notes)
    if layer_types is not None:
        stated = [kind == "sliding_attention" for kind in layer_types]
        if stated != [value is not None for value in windows]:
            raise CheckpointError(
                f"{where}: layer_types and the sliding window settings of a {family} model contradict each other: "
                "correct the file"
            )
    return windows


def _qwen_windows(
    raw: Mapping[str, Any],
    layers: int,
    layer_types: list[str] | None,
    window: int | None,
    where: str,
    notes: list[str],
) -> tuple[int | None, ...]:
    if not _flag(raw, "use_sliding_window", False, where):
        if window is not None:
            notes.append(f"use_sliding_window is false, so sliding_window {window} has no effect: full attention")
        return (None,) * layers
    if "sliding_window" not in raw:
        window = _QWEN_WINDOW
        notes.append(f"sliding_window is absent, so the default holds: {window}")
    if layer_types is not None:
        return tuple(window if kind == "sliding_attention" else None for kind in layer_types)
    first = raw.get("max_window_layers")
    if first is None:
        first = _QWEN_MAX_WINDOW_LAYERS
        notes.append(f"max_window_layers is absent, so the default holds: {first}")
    if isinstance(first, bool) or not isinstance(first, int) or first < 0:
        raise CheckpointError(f"{where}: max_window_layers must be a whole number, got {first!r}: correct the file")
    return tuple(window if index >= first else None for index in range(layers))
