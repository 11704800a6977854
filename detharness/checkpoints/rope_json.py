"""The rotary embedding settings of ``config.json``, in every spelling that real folders use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from detharness.checkpoints.config import RopeConfig, is_finite_number
from detharness.errors import CheckpointError

_KINDS = ("default", "linear", "llama3", "yarn")
_LAYER_TYPES = ("full_attention", "sliding_attention")
_FIELDS: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": (
        "factor",
        "original_max_position_embeddings",
        "attention_factor",
        "beta_fast",
        "beta_slow",
        "mscale",
        "mscale_all_dim",
        "truncate",
    ),
}
_EVERYWHERE = ("type", "rope_type", "rope_theta", "partial_rotary_factor", "finetuned")


@dataclass(frozen=True)
class ParsedRope:
    """Rotary settings, the context length they give the model, and notes on what was inferred."""

    rope: RopeConfig
    context_length: int
    notes: tuple[str, ...] = ()


def parse_rope(
    raw: Mapping[str, Any], *, max_positions: int, used_layer_types: tuple[str, ...], where: str
) -> ParsedRope:
    """Return the rotary settings of a parsed ``config.json``.

    Reads the root ``rope_theta``, ``rope_scaling`` and ``rope_parameters`` (flat, or nested per layer type).
    ``used_layer_types``: the layer types that occur in this model. ``where``: the file, for messages. A missing
    theta, a scaling kind that cannot be computed, and two places that disagree raise ``CheckpointError``.
    """
    settings = _settings(raw, where)
    nested = [key for key, value in settings.items() if key in _LAYER_TYPES or isinstance(value, Mapping)]
    if not nested:
        return _parse_flat(raw, settings, max_positions, where)
    results = []
    for layer_type in used_layer_types:
        inner = settings.get(layer_type)
        if not isinstance(inner, Mapping):
            raise CheckpointError(
                f"{where}: rope_parameters has no settings for {layer_type!r}, which this model uses: complete the file"
            )
        results.append(_parse_flat(raw, inner, max_positions, f"{where}, rope_parameters.{layer_type}"))
    if any(result.rope != results[0].rope for result in results):
        raise CheckpointError(
            f"{where}: rope_parameters differ between layer types, which is not supported: use a model with one rotary "
            "embedding"
        )
    return results[0]


def _settings(raw: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    found = {}
    for key in ("rope_parameters", "rope_scaling"):
        value = raw.get(key)
        if value is None:
            continue
        if not isinstance(value, Mapping):
            raise CheckpointError(f"{where}: {key} must be an object or null, got {value!r}: correct the file")
        found[key] = value
    if len(found) == 2:
        new, old = (_comparable(found[key], f"{where}, {key}") for key in ("rope_parameters", "rope_scaling"))
        clashes = [key for key in sorted(new | old) if new.get(key) != old.get(key)]
        if "rope_theta" in clashes and not ("rope_theta" in new and "rope_theta" in old):
            clashes.remove("rope_theta")  # Stated once is no disagreement.
        if clashes:
            raise CheckpointError(
                f"{where}: rope_parameters and rope_scaling disagree on {clashes[0]!r}: keep one of them"
            )
        return {**old, **new}
    return next(iter(found.values()), {})


def _comparable(settings: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The settings without nulls and under one spelling of the kind."""
    given = {key: value for key, value in settings.items() if value is not None and key not in ("type", "rope_type")}
    return {**given, "rope_type": _kind(settings, where)}


def _kind(settings: Mapping[str, Any], where: str) -> str:
    named = {key: settings[key] for key in ("rope_type", "type") if settings.get(key) is not None}
    if len(set(map(str, named.values()))) > 1:
        raise CheckpointError(
            f"{where}: rope scaling says rope_type {named['rope_type']!r} and type {named['type']!r}: keep one of them"
        )
    if not named:
        spelt_null = "rope_type" in settings or "type" in settings
        if not spelt_null and settings.get("factor") is not None:
            raise CheckpointError(f"{where}: rope scaling has a factor but no rope_type: name the kind of scaling")
        return "default"
    kind = next(iter(named.values()))
    if kind not in _KINDS:
        raise CheckpointError(
            f"{where}: rope scaling {kind!r} is not supported (supported: {', '.join(_KINDS)}): use another model, "
            "because running it unscaled would give wrong results"
        )
    return str(kind)


def _number(settings: Mapping[str, Any], key: str, where: str) -> float | None:
    value = settings.get(key)
    if value is None:
        return None
    if not is_finite_number(value):
        raise CheckpointError(f"{where}: {key} must be a finite number, got {value!r}: correct the file")
    return float(value)


def _positive(settings: Mapping[str, Any], key: str, where: str) -> float | None:
    value = _number(settings, key, where)
    if value is not None and value <= 0:
        raise CheckpointError(f"{where}: {key} must be above 0, got {value!r}: correct the file")
    return value


def _either(raw: Mapping[str, Any], settings: Mapping[str, Any], key: str, where: str) -> float | None:
    """A number that may stand at the root or inside the rope settings; both must agree."""
    outer, inner = _positive(raw, key, where), _positive(settings, key, where)
    if outer is not None and inner is not None and outer != inner:
        raise CheckpointError(f"{where}: {key} is {outer:g} at the root and {inner:g} in the rope settings: keep one")
    return inner if inner is not None else outer


def _parse_flat(raw: Mapping[str, Any], settings: Mapping[str, Any], max_positions: int, where: str) -> ParsedRope:
    kind = _kind(settings, where)
    theta = _either(raw, settings, "rope_theta", where)
    if theta is None:
        raise CheckpointError(
            f"{where}: rope_theta is missing (neither at the root nor in rope_parameters): add the value the model was "
            "trained with"
        )
    partial = _either(raw, settings, "partial_rotary_factor", where)
    if partial not in (None, 1.0):
        raise CheckpointError(f"{where}: partial_rotary_factor {partial:g} is not supported: use another model")
    if raw.get("rope_interleaved"):
        raise CheckpointError(f"{where}: rope_interleaved is not supported: use another model")
    if kind == "default":
        unused = sorted(key for key in settings if key not in _EVERYWHERE and settings[key] is not None)
        note = f"rope: no scaling, so {', '.join(unused)} in the rope settings is not used"
        return ParsedRope(RopeConfig(theta=theta), max_positions, (note,) if unused else ())
    unknown = sorted(key for key in settings if key not in (*_EVERYWHERE, *_FIELDS[kind]) and settings[key] is not None)
    if unknown:
        raise CheckpointError(
            f"{where}: rope scaling {kind!r} has a field that is not supported, {unknown[0]!r}: remove it if it has no "
            "effect, or use another model"
        )
    if kind == "linear":
        rope = RopeConfig(theta=theta, kind="linear", factor=_required(settings, "factor", kind, where))
        return ParsedRope(rope, max_positions)
    original, explicit, notes = _original_positions(raw, settings, max_positions, kind, where)
    if kind == "llama3":
        rope = RopeConfig(
            theta=theta,
            kind="llama3",
            factor=_required(settings, "factor", kind, where),
            low_freq_factor=_required(settings, "low_freq_factor", kind, where),
            high_freq_factor=_required(settings, "high_freq_factor", kind, where),
            original_max_positions=original,
        )
        if rope.low_freq_factor == rope.high_freq_factor:
            raise CheckpointError(f"{where}: low_freq_factor and high_freq_factor must differ: correct the file")
        return ParsedRope(rope, max_positions, notes)
    return _parse_yarn(settings, theta, original, explicit, max_positions, notes, where)


def _parse_yarn(
    settings: Mapping[str, Any],
    theta: float,
    original: int,
    explicit: bool,
    max_positions: int,
    notes: tuple[str, ...],
    where: str,
) -> ParsedRope:
    factor = _positive(settings, "factor", where)
    if factor is None:
        if not explicit:
            raise CheckpointError(
                f"{where}: yarn scaling needs a factor or original_max_position_embeddings: add one of them"
            )
        factor = max_positions / original
        notes = (*notes, f"rope: yarn factor {factor:g} taken from max_position_embeddings / original length")
    if theta <= 1:
        raise CheckpointError(f"{where}: yarn scaling needs a rope_theta above 1, got {theta:g}: correct the file")
    truncate = settings.get("truncate")
    if truncate is not None and not isinstance(truncate, bool):
        raise CheckpointError(f"{where}: truncate must be true or false, got {truncate!r}: correct the file")
    rope = RopeConfig(
        theta=theta,
        kind="yarn",
        factor=factor,
        original_max_positions=original,
        # Zero counts as "not given" for these, as in transformers.
        beta_fast=_number(settings, "beta_fast", where) or 32.0,
        beta_slow=_number(settings, "beta_slow", where) or 1.0,
        attention_factor=_positive(settings, "attention_factor", where),
        mscale=_number(settings, "mscale", where) or None,
        mscale_all_dim=_number(settings, "mscale_all_dim", where) or None,
        truncate=True if truncate is None else truncate,
    )
    # Only a stated original length may be multiplied: otherwise max_position_embeddings may hold the product already.
    reach = int(original * factor)
    if explicit and reach > max_positions:
        note = f"context length {reach} from yarn (original length x factor) instead of {max_positions}"
        return ParsedRope(rope, reach, (*notes, note))
    return ParsedRope(rope, max_positions, notes)


def _required(settings: Mapping[str, Any], key: str, kind: str, where: str) -> float:
    value = _positive(settings, key, where)
    if value is None:
        raise CheckpointError(f"{where}: rope scaling {kind!r} needs {key}: add it")
    return value


def _original_positions(
    raw: Mapping[str, Any], settings: Mapping[str, Any], max_positions: int, kind: str, where: str
) -> tuple[int, bool, tuple[str, ...]]:
    key = "original_max_position_embeddings"
    original = _either(raw, settings, key, where)
    if original is None:
        note = f"rope: {kind} scaling without {key}, so max_position_embeddings ({max_positions}) is taken for it"
        return max_positions, False, (note,)
    if original != int(original):
        raise CheckpointError(f"{where}: {key} must be a whole number, got {original!r}: correct the file")
    return int(original), True, ()
