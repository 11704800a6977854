"""Where two replies to one prompt part, by the best evidence that both carry, which is named.

Token ids say it exactly, and so do logprob entries. Without either, the byte offset is exact and the token index an
estimate: a reply's own tokens need not be those that a tokenizer makes of its text. Every index counts from the
beginning of the reply.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

from detharness.targets.serving import ServedReply

Method = Literal["token ids", "logprob entries", "server tokenizer", "local tokenizer", "bytes"]

_BYTES_PER_TOKEN = 4  # Of everyday text under everyday tokenizers; used only where a server counts no tokens.


@dataclass(frozen=True)
class Parting:
    """The first difference. ``interval``: token indices between which it lies, both included; equal ends are exact.

    byte_offset: of the first byte that differs in the text; None where other tokens spell the same text.
    """

    index: int
    interval: tuple[int, int]
    method: Method
    byte_offset: int | None


def whole_text(reply: ServedReply) -> str:
    """All the text that was generated: the reasoning, where a server keeps it apart, then the content."""
    return (reply.reasoning or "") + reply.text


def token_count(reply: ServedReply) -> int:
    """Tokens of the reply: its ids, its entries, what the server counted, or an estimate from its bytes."""
    if reply.token_ids is not None:
        return len(reply.token_ids)
    if reply.tokens is not None:
        return len(reply.tokens)
    if reply.completion_tokens is not None:
        return reply.completion_tokens
    return math.ceil(len(_bytes(reply)) / _BYTES_PER_TOKEN)


def parting(reference: ServedReply, other: ServedReply) -> Parting | None:
    """Where ``other`` leaves ``reference``; None where the two are equal at every level that both carry."""
    offset = _first_difference(_bytes(reference), _bytes(other))
    for method, left, right in _token_levels(reference, other):
        index = _first_difference(left, right)
        if index is not None:
            return Parting(index, (index, index), method, offset)
    return None if offset is None else _by_bytes(reference, other, offset)


def by_tokenizer(
    found: Parting, common: Sequence[int], reference: Sequence[int], other: Sequence[int], method: Method
) -> Parting:
    """``found``, estimated anew from a tokenizer's ids of the common text and of both replies.

    The tokens of the common text may join with what follows, so the index lies between where the ids part and where
    the common text ends.
    """
    index = _first_difference(reference, other)
    index = len(common) if index is None else index
    return Parting(index, (min(index, len(common)), max(index, len(common))), method, found.byte_offset)


def _token_levels(
    reference: ServedReply, other: ServedReply
) -> list[tuple[Method, Sequence[Hashable], Sequence[Hashable]]]:
    """The levels at which both replies hold tokens, best first. Entries may hold what ids do not, and the reverse."""
    levels: list[tuple[Method, Sequence[Hashable], Sequence[Hashable]]] = []
    if reference.token_ids is not None and other.token_ids is not None:
        levels.append(("token ids", reference.token_ids, other.token_ids))
    if reference.tokens is not None and other.tokens is not None:
        levels.append(("logprob entries", _spelled(reference), _spelled(other)))
    return levels


def _spelled(reply: ServedReply) -> list[Hashable]:
    """The entries' tokens as bytes where the server gives them: two tokens may show one replacement character."""
    return [token.text if token.raw is None else token.raw for token in reply.tokens or ()]


def _by_bytes(reference: ServedReply, other: ServedReply, offset: int) -> Parting:
    """An estimate from the byte offset, as if the reference's tokens were equally long.

    The interval is that of the token which holds the byte, wherever every token has one: ``offset`` bytes hold at most
    as many tokens, and so does the rest behind them.
    """
    tokens, size = token_count(reference), len(_bytes(reference))
    if size == 0 or tokens == 0:
        return Parting(0, (0, 0), "bytes", offset)
    low, high = max(0, tokens - (size - offset)), min(offset, tokens)
    return Parting(min(max(offset * tokens // size, low), high), (low, high), "bytes", offset)


def _bytes(reply: ServedReply) -> bytes:
    return whole_text(reply).encode("utf-8", "surrogatepass")


def _first_difference(left: Sequence[Hashable], right: Sequence[Hashable]) -> int | None:
    """The first index at which two sequences differ, the end of the shorter one included; None if they are equal."""
    if left == right:
        return None
    pairs = enumerate(zip(left, right, strict=False))
    return next((index for index, (mine, theirs) in pairs if mine != theirs), min(len(left), len(right)))
