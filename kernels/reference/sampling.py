"""The sampler of ``kernels.sampling`` again, from its definition: Python integers, Python floats, one row at a time.

The noise is Gumbel noise from Philox4x32-10 counters (token id, position, sample index, 0) under the key (low and high
half of the seed). The masks are decided on the list of ids sorted by (logit descending, id ascending).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

MASK = 0xFFFFFFFF


def philox4x32(counter: Sequence[int], key: Sequence[int], rounds: int = 10) -> tuple[int, int, int, int]:
    """Four counter words and two key words, 32 bits each -> four random words (Salmon et al., SC 2011)."""
    a, b, c, d = counter
    left, right = key
    for _ in range(rounds):
        first, second = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = (second >> 32) ^ b ^ left, second & MASK, (first >> 32) ^ d ^ right, first & MASK
        left, right = (left + 0x9E3779B9) & MASK, (right + 0xBB67AE85) & MASK
    return a, b, c, d


def gumbel(seed: int, sample_index: int, position: int, token_id: int) -> float:
    """The noise of one token id: -log(-log(u)), u the middle of one of 2^53 equal parts of (0, 1)."""
    high, low, _, _ = philox4x32((token_id, position, sample_index, 0), (seed & MASK, seed >> 32))
    bits = (high >> 5) << 26 | low >> 6
    u = min((bits + 0.5) / 2**53, 1 - 2**-53)
    return -math.log(-math.log(u))


def kept(logits: Sequence[float], top_k: int, top_p: float, min_p: float) -> set[int]:
    """Ids that top-k, then top-p, then min-p keep of one row of tempered logits; 0, 1 and 0 switch them off."""
    ranked = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    if top_k > 0:
        ranked = ranked[:top_k]
    weight = {token: math.exp(logits[token] - logits[ranked[0]]) for token in ranked}
    if top_p < 1:
        total = 0.0
        for token in ranked:
            total += weight[token]
        nucleus: list[int] = []
        before = 0.0
        for token in ranked:
            if nucleus and before >= top_p * total:
                break
            nucleus.append(token)
            before += weight[token]
        ranked = nucleus
    return {token for token in ranked if weight[token] >= min_p}


def sample_row(
    logits: Sequence[float],
    *,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    seed: int,
    sample_index: int,
    position: int,
    vocab_limit: int,
) -> int:
    """The token of one row of finite logits [V]: argmax at temperature 0, else Gumbel-max over the kept ids."""
    row = list(logits[:vocab_limit])
    if temperature == 0:
        return row.index(max(row))
    tempered = [value / temperature for value in row]
    scores = {
        token: tempered[token] + gumbel(seed, sample_index, position, token)
        for token in sorted(kept(tempered, top_k, top_p, min_p))
    }
    return max(scores, key=lambda token: (scores[token], -token))
