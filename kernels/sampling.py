"""Sampling as a pure function: token = f(logits row, seed, sample index, absolute position).

Gumbel-max: the token drawn is the argmax of logits / temperature + noise over the ids that the masks keep. The noise
comes from a counter generator keyed by (seed, sample index, position, TOKEN ID), so it is indexed neither by rank nor
by slot, and no stream is consumed. No generator objects, no state. Both kernel sets draw with this function; they
differ only in the log-softmax behind ``processed_logprobs``.

Masks are decided on the order (logit descending, id ascending), after temperature: top-k first, then top-p on what is
left, then min-p against the largest probability. Each row is handled alone: nothing is shared with its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from detharness.kernels.contract import SampledRows, SamplingRows
from detharness.kernels.elementary import exp64, log64

Floats = NDArray[np.float64]

_WORD = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)
# Multipliers and Weyl constants of Philox4x32-10: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy
# as 1, 2, 3", SC 2011.
_MULTIPLY = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)


def philox(counter: tuple[NDArray[np.uint64], ...], key: tuple[int, int]) -> tuple[NDArray[np.uint64], ...]:
    """Philox4x32-10: four counter words (32 bits each, held in uint64 arrays) and a key -> four random words."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        high = _MULTIPLY[0] * c0
        low = _MULTIPLY[1] * c2
        c0, c1, c2, c3 = (
            (low >> _SHIFT) ^ c1 ^ np.uint64(k0),
            low & _WORD,
            (high >> _SHIFT) ^ c3 ^ np.uint64(k1),
            high & _WORD,
        )
        k0, k1 = (k0 + _WEYL[0]) & 0xFFFFFFFF, (k1 + _WEYL[1]) & 0xFFFFFFFF
    return c0, c1, c2, c3


def gumbel_noise(seed: int, sample_index: int, position: int, vocab: int) -> Floats:
    """Standard Gumbel noise [vocab] fp64, one value per token id: -log(-log(u)), u in (0, 1) from 53 bits.

    Counter words are (token id, position, sample index, 0), the key is the seed's two halves.
    """
    ids = np.arange(vocab, dtype=np.uint64)
    fixed = [np.full(vocab, value, dtype=np.uint64) for value in (position, sample_index, 0)]
    w0, w1, _, _ = philox((ids, *fixed), (seed & 0xFFFFFFFF, seed >> 32))
    bits = ((w0 >> np.uint64(5)) << np.uint64(26)) | (w1 >> np.uint64(6))
    # 53 bits and a half: never 0. The largest would round to 1, whose noise is infinite, so it is held below.
    uniform = np.minimum((bits.astype(np.float64) + 0.5) * 2.0**-53, 1.0 - 2.0**-53)
    inner = -log64(torch.from_numpy(uniform))
    return (-log64(inner)).numpy()


def kept_ids(logits: Floats, top_k: int, top_p: float, min_p: float) -> NDArray[np.bool_]:
    """Which ids the masks keep, from tempered logits [V]: at least the best one.

    Probabilities and their running sum are fp64, summed in the order (logit descending, id ascending).
    """
    keep = np.ones(logits.shape, dtype=np.bool_)
    if top_k > 0 or top_p < 1.0:
        # A stable sort of the negated row: equal logits stay in ascending id.
        order = np.argsort(-logits, kind="stable")
        if 0 < top_k < len(order):
            keep[order[top_k:]] = False
            order = order[:top_k]
        if top_p < 1.0:
            running = np.add.accumulate(_weights(logits[order], logits[order[0]]))
            # An id stays while the mass before it is short of top_p.
            keep[order[1:][running[:-1] >= top_p * running[-1]]] = False
    if min_p > 0.0:
        keep &= _weights(logits, logits.max()) >= min_p
    return keep


def _weights(logits: Floats, best: np.float64) -> Floats:
    """exp(logits - best); a distance beyond fp64 is as good as infinite."""
    with np.errstate(over="ignore"):
        return exp64(torch.from_numpy(logits - best)).numpy()


def sample(logits: Tensor, rows: SamplingRows, processed_log_softmax: Callable[[Tensor], Tensor] | None) -> SampledRows:
    """Draw one token per row of ``logits`` [M, V] fp32.

    Temperature 0 takes the argmax, ties to the lowest id; its processed distribution is that one point (0 and -inf).
    So does a row whose best logit is infinite, or becomes so when it is divided by a tiny temperature. A row that holds
    NaN draws the lowest id that holds it, its processed row is NaN, and no other row is disturbed. Processed logprobs
    are computed with ``processed_log_softmax``, or not at all when it is None.
    """
    table = logits[:, : rows.vocab_limit].numpy()
    tokens: list[int] = []
    processed = None if processed_log_softmax is None else torch.full_like(logits, -torch.inf)
    for row, temperature in enumerate(rows.temperature.tolist()):
        tempered = _tempered(table[row], temperature)
        if tempered is None:
            # numpy documents the first occurrence for ties and for NaN; torch leaves ties open.
            token = int(np.argmax(table[row]))
            if processed is not None:
                if np.isnan(table[row, token]):
                    processed[row, : rows.vocab_limit] = torch.nan
                else:
                    processed[row, token] = 0.0
        else:
            keep = kept_ids(tempered, int(rows.top_k[row]), float(rows.top_p[row]), float(rows.min_p[row]))
            noise = gumbel_noise(
                int(rows.seed[row]), int(rows.sample_index[row]), int(rows.position[row]), len(tempered)
            )
            token = int(np.argmax(np.where(keep, tempered + noise, -np.inf)))
            if processed is not None and processed_log_softmax is not None:
                # Taken from the best in fp64 first: a tiny temperature leaves numbers that fp32 cannot hold.
                with np.errstate(over="ignore"):
                    shifted = np.where(keep, tempered - tempered.max(), -np.inf)
                masked = torch.from_numpy(shifted).float()
                processed[row, : rows.vocab_limit] = processed_log_softmax(masked[None])[0]
        tokens.append(token)
    return SampledRows(torch.tensor(tokens, dtype=torch.int64), processed)


def _tempered(logits: NDArray[np.float32], temperature: float) -> Floats | None:
    """logits [V] / temperature in fp64; None where nothing is left to draw and the argmax decides."""
    if temperature == 0.0:
        return None
    with np.errstate(over="ignore"):
        tempered: Floats = logits.astype(np.float64) / temperature
    return tempered if np.isfinite(tempered.max()) else None
