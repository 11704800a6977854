"""Canonical JSON, one value in one sequence of bytes, and its strict reader."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import orjson

from detharness.errors import UsageError

_PLAIN = (str, int, float, bool, type(None))


def canonical_bytes(value: object) -> bytes:
    """Return ``value`` as compact UTF-8 JSON with sorted keys and shortest floats that read back bit for bit.

    ``value`` is built of dict (str keys), list, tuple, str, int (64 bits), float, bool and None; nothing is
    converted on the way. TypeError for any other type, ValueError for NaN, an infinity, a lone surrogate or a
    larger int, each naming the place: what is missing must be an explicit None, never NaN turned into null.
    ValueError, too, for what is nested deeper than the 254 levels that orjson writes.
    """
    try:
        _check(value, "$")
    except RecursionError:
        raise ValueError("nested too deeply") from None
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError:  # Depth is all that was not checked before.
        raise ValueError("nested too deeply") from None


def _check(value: object, where: str) -> None:
    kind = type(value)
    if kind is dict:
        for key, item in value.items():  # type: ignore[attr-defined]
            if type(key) is not str:
                raise TypeError(f"{where}: keys must be str, got {key!r}")
            _check(key, f"{where}.{key!r}")
            _check(item, f"{where}.{key}")
    elif kind is list or kind is tuple:
        if _all_fit_64_bits(value):  # type: ignore[arg-type]
            return
        for index, item in enumerate(value):  # type: ignore[arg-type]
            _check(item, f"{where}[{index}]")
    elif kind not in _PLAIN:
        raise TypeError(f"{where}: {kind.__module__}.{kind.__qualname__} is not a plain JSON type")
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{where}: {value!r} has no JSON form; use None and say so in another field")
    elif isinstance(value, str) and not _is_unicode(value):
        raise ValueError(f"{where}: {value!r} holds a lone surrogate")
    elif isinstance(value, int) and not -(2**63) <= value < 2**64:
        raise ValueError(f"{where}: {value} does not fit 64 bits")


def _all_fit_64_bits(values: list[Any] | tuple[Any, ...]) -> bool:
    """Whether ``values`` are integers of 64 bits: replies hold tens of thousands of token ids, too many to walk."""
    return set(map(type, values)) == {int} and min(values) >= -(2**63) and max(values) < 2**64


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def parse_json(data: bytes) -> Any:
    """Read one JSON value strictly; ValueError (a short phrase) for what two readers could read apart.

    Refused: invalid UTF-8, a byte order mark, NaN and infinities, numbers too large for a float, lone
    surrogates, a key that stands twice in one object, and what is nested too deeply for Python to read.
    """
    if data.startswith(b"\xef\xbb\xbf"):
        raise ValueError("starts with a byte order mark")
    try:
        orjson.loads(data)  # The strict grammar; the second reading is for duplicate keys, which orjson merges.
    except orjson.JSONDecodeError as error:
        raise ValueError(f"not valid JSON: {error.msg} at character {error.pos + 1}") from None
    try:
        return json.loads(data, object_pairs_hook=_unique_keys)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        seen: dict[str, Any] = {}
        for key, value in pairs:
            if key in seen:
                raise ValueError(f"the key {key!r} stands twice in one object")
            seen[key] = value
    return result


def parse_canonical(data: bytes) -> Any:
    """``parse_json`` for what will be written or digested again: refuses what has no canonical form, too."""
    value = parse_json(data)
    canonical_bytes(value)
    return value


def read_json(path: Path) -> Any:
    """Read a JSON file strictly (see ``parse_canonical``); UsageError names the file."""
    try:
        return parse_canonical(path.read_bytes())
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"{path}: {error}") from None
