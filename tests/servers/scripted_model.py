"""A model without weights: the next token is a function of a hash of everything before it, with honest near ties.

A drift moves its logits as rounding does: logprobs move everywhere, tokens only where the best two nearly tie.
"""

from __future__ import annotations

import functools
import hashlib
import math
import re
from collections.abc import Sequence
from random import Random

_WORDS = re.findall(
    r"\S+",
    """the of and to in is that for it as was with be by on not he his but at are this have from or had an they
which one you were all her she there would their we him been has when who will more no if out so said what up its about
into than them can only other new some could time these two may then do first any my now such like our over man me even
most made after also did many before must through back years where much your way well down should because each just
those people naïve 東京 Grüße""",
)
_HOSTILE = ("<script>document.title=1</script>", "\x1b[2J\x1b]0;owned\x07", "\u202eevil", "`|`\n# no", "</td>&lt;")

VOCABULARY: tuple[bytes, ...] = (
    *(bytes([value]) for value in range(256)),
    *(f" {word}".encode() for word in _WORDS),
    b" \xf0\x9f",  # An emoji in two tokens, neither of which is text by itself.
    b"\x99\x82",
    *(f" {word}".encode() for word in _HOSTILE),
    b"",  # The end.
)
_FIRST_HALF, _SECOND_HALF = 256 + len(_WORDS), 257 + len(_WORDS)
_WORD_COUNT = len(_WORDS) + 1
END = len(VOCABULARY) - 1
_LONGEST = max(map(len, VOCABULARY))
_ID_OF = {piece: token for token, piece in enumerate(VOCABULARY) if piece}

NEAR_TIE = 1e-4  # The gap of the best two logits at a near tie is between this and twice this; else above 0.5.
_NEAR_TIES = 8  # One position in so many is a near tie.


def encode(text: str) -> list[int]:
    """Token ids of ``text``: the longest piece that fits, from the left. Its own replies are always encoded so."""
    data, ids, at = text.encode("utf-8", "surrogatepass"), [], 0
    while at < len(data):
        size = next(size for size in range(min(_LONGEST, len(data) - at), 0, -1) if data[at : at + size] in _ID_OF)
        ids.append(_ID_OF[data[at : at + size]])
        at += size
    return ids


def decode(ids: Sequence[int]) -> str:
    """The text of ``ids``, with replacement characters for what is no UTF-8, as servers do."""
    return b"".join(VOCABULARY[token] for token in ids).decode("utf-8", "replace")


def start(ids: Sequence[int]) -> bytes:
    """The state after ``ids``, wherever a prompt ends among them."""
    return functools.reduce(advance, ids, b"start")


def advance(state: bytes, token: int) -> bytes:
    """The state after one more token."""
    return _digest(state, token.to_bytes(4, "big"))


def logprobs(
    state: bytes,
    last: int | None,
    drifts: Sequence[tuple[str, float]] = (),
    *,
    ends_after: int | None = None,
    hostile: bool = False,
) -> list[tuple[int, float]]:
    """The five best tokens and their logprobs, best first; an equal pair is in ascending order of ids.

    drifts: (cause, size): each moves every logit by up to ``size``, in a way that cause and state fix.
    ends_after: the end is drawn once in so many tokens. hostile: some words are markup and terminal sequences.
    """
    digest = _digest(b"row", state)
    if last == _FIRST_HALF:
        ids, logits = [_SECOND_HALF, ord("a"), ord("b"), ord("c"), ord("d")], [0.0, -20.0, -21.0, -22.0, -23.0]
    else:
        ids = [int.from_bytes(digest[:4], "big") % _WORD_COUNT]
        for step in digest[4:8]:
            ids.append((ids[-1] + 1 + step % 20) % _WORD_COUNT)
        ids = [256 + index for index in ids]
        if hostile and digest[8] % 4 == 0:
            ids[0] = _SECOND_HALF + 1 + digest[9] % len(_HOSTILE)
        if ends_after is not None and int.from_bytes(digest[10:14], "big") % ends_after == 0:
            ids[0] = END
        near = digest[14] % _NEAR_TIES == 0
        gap = NEAR_TIE * (1 + digest[15] / 256) if near else 0.5 + digest[15] / 100
        logits = [0.0, -gap, -gap - 1.0, -gap - 1.5, -gap - 2.0]
    for cause, size in drifts:
        moves = _digest(cause.encode(), state)
        logits = [logit + size * (move / 127.5 - 1) for logit, move in zip(logits, moves, strict=False)]
    total = math.log(math.fsum(map(math.exp, logits)) + math.exp(-8.0))  # Something is left for all other tokens.
    return sorted(zip(ids, (logit - total for logit in logits), strict=True), key=lambda pair: (-pair[1], pair[0]))


def draw(row: list[tuple[int, float]], temperature: float, seed: str) -> int:
    """The best token, or one drawn with Gumbel noise that ``seed`` fixes."""
    if temperature <= 0:
        return row[0][0]
    noise = Random(seed)
    return max(row, key=lambda pair: pair[1] / temperature - math.log(-math.log(noise.random() or 0.5)))[0]


def _digest(*parts: bytes) -> bytes:
    return hashlib.blake2b(b"|".join(parts), digest_size=16).digest()
