"""Where two outputs part: the first position that differs, and the text around it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from detharness.eval.records import Output

Part = Literal["token_ids", "reasoning", "text", "finish_reason"]

_CONTEXT = 40  # Characters on each side of the first difference.
_TOKENS = 5


@dataclass(frozen=True)
class Difference:
    """The first difference of two outputs.

    part: what differs: token ids where both have them, else the reasoning, the text, or only the finish reason. index:
    the first position that differs in it (0-based; tokens or characters), None for a finish reason or where one side
    has none at all. token_ids: the ids from shortly before the index on each side. text: what stands around the first
    differing character in each side's text (else reasoning), None where these are equal.
    """

    part: Part
    index: int | None
    token_ids: tuple[tuple[int, ...], tuple[int, ...]] | None
    text: tuple[str, str] | None

    def as_row(self) -> dict[str, Any]:
        """Plain JSON."""
        return {
            "part": self.part,
            "index": self.index,
            "token_ids": None if self.token_ids is None else [list(ids) for ids in self.token_ids],
            "text": None if self.text is None else list(self.text),
        }


def same_output(a: Output, b: Output) -> bool:
    """Whether two outputs are the same, by all that both targets tell: token ids count where both sides have them."""
    tokens = a.token_ids is None or b.token_ids is None or a.token_ids == b.token_ids
    return tokens and (a.text, a.reasoning, a.finish_reason) == (b.text, b.reasoning, b.finish_reason)


def first_difference(a: Output, b: Output) -> Difference | None:
    """Where ``a`` and ``b`` part; None when they are the same (see ``same_output``)."""
    if same_output(a, b):
        return None
    around = _text_around(a, b)
    if a.token_ids is not None and b.token_ids is not None and a.token_ids != b.token_ids:
        index = first_index(a.token_ids, b.token_ids)
        window = slice(max(0, index - _TOKENS), index + _TOKENS)
        return Difference("token_ids", index, (a.token_ids[window], b.token_ids[window]), around)
    pairs: tuple[tuple[Part, str | None, str | None], ...] = (
        ("reasoning", a.reasoning, b.reasoning),
        ("text", a.text, b.text),
    )
    for part, ours, theirs in pairs:
        if ours != theirs:
            index_or_none = None if ours is None or theirs is None else first_index(ours, theirs)
            return Difference(part, index_or_none, None, around)
    return Difference("finish_reason", None, None, None)


def first_index(a: Sequence[object], b: Sequence[object]) -> int:
    """The first index at which ``a`` and ``b`` differ; the shorter length where one begins the other."""
    low, high = 0, min(len(a), len(b))
    while low < high:  # The longest common beginning, by halving: slices compare far faster than items do.
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _text_around(a: Output, b: Output) -> tuple[str, str] | None:
    for ours, theirs in ((a.reasoning or "", b.reasoning or ""), (a.text or "", b.text or "")):
        if ours != theirs:
            index = first_index(ours, theirs)
            window = slice(max(0, index - _CONTEXT), index + _CONTEXT)
            return ours[window], theirs[window]
    return None
