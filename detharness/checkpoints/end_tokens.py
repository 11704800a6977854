"""The ids that end a reply: the union of every place that names one, with its origin."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from detharness.errors import CheckpointError


def parse_end_tokens(value: Any, where: str) -> tuple[int, ...]:
    """``eos_token_id`` as files write it: a number, a list of numbers, or null."""
    if value is None:
        return ()
    values = value if isinstance(value, list) else [value]
    if any(isinstance(item, bool) or not isinstance(item, int) for item in values):
        raise CheckpointError(f"{where}: eos_token_id must be a whole number or a list of them, got {value!r}")
    return tuple(values)


def unite_end_tokens(places: Mapping[str, Iterable[int]], vocab_size: int) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Return the union in the order of ``places``, and notes on origins.

    ``places``: place name -> ids it gives (none: the place is silent). Ids outside the vocabulary are left out
    with a note, because they can never be produced.
    """
    found = {place: tuple(dict.fromkeys(ids)) for place, ids in places.items()}
    found = {place: ids for place, ids in found.items() if ids}
    union = tuple(dict.fromkeys(token for ids in found.values() for token in ids))
    outside = [token for token in union if not 0 <= token < vocab_size]
    notes = []
    if not union:
        notes.append("no file names an end token: a reply ends only at its length limit or a stop string")
    else:
        origins = "; ".join(f"{place} {', '.join(map(str, ids))}" for place, ids in found.items())
        agreement = "" if len({frozenset(ids) for ids in found.values()}) == 1 else " (they disagree; all are used)"
        notes.append(f"end tokens: {origins}{agreement}")
    if outside:
        notes.append(f"end tokens outside the vocabulary are ignored: {', '.join(map(str, outside))}")
    return tuple(token for token in union if token not in outside), tuple(notes)
