"""What servers write in JSON, read by type: a value that is not what its place asks for is None, never a guess."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any, TypeVar

import orjson

from detharness.targets.generation import GenerationError

T = TypeVar("T")

_LARGEST = 2**53 - 1  # The largest whole number that every reader of JSON holds exactly.


def document(data: bytes) -> Any:
    """The value in ``data``; GenerationError "bad_response" where it is not whole JSON.

    NaN and the infinities, which JSON does not have and some servers write in place of a logprob, are None.
    """
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        pass
    try:
        if b"NaN" not in data and b"Infinity" not in data:
            raise ValueError
        value = json.loads(data.decode(), parse_constant=lambda name: None)
        orjson.dumps(value)  # Lone surrogates and huge numbers, which the strict reader refuses.
    except (ValueError, TypeError, RecursionError):
        raise GenerationError("bad_response", "the reply is not whole JSON", retriable=True) from None
    return value


def count(value: object) -> int | None:
    """A whole number that counts something."""
    return value if type(value) is int and 0 <= value <= _LARGEST else None


def number(value: object) -> float | None:
    """A finite number."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if math.isfinite(value) else None


def text(value: object) -> str | None:
    """A text."""
    return value if isinstance(value, str) else None


def each(values: object, read: Callable[[object], T | None]) -> list[T] | None:
    """Every one of ``values`` as ``read`` reads it, or None where one of them, or their list, is something else."""
    if not isinstance(values, list):
        return None
    found = [one for value in values if (one := read(value)) is not None]
    return found if len(found) == len(values) else None


def at(value: object, *path: str) -> Any:
    """What stands at ``path`` in nested objects; None where the path ends."""
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value
