"""From logits rows to tokens and logprobs: builds the per-row sampling inputs and reads the results back."""

from __future__ import annotations

from collections.abc import Sequence as Many

import torch
from torch import Tensor

from detharness.engine.outputs import TokenLogprob
from detharness.engine.sequence import Sequence
from detharness.kernels.contract import KernelSet, SampledRows, SamplingRows


def draw(kernels: KernelSet, logits: Tensor, sequences: Many[Sequence], vocab_limit: int) -> SampledRows:
    """Draw the next token of each sequence from its logits row [R, V] fp32.

    The noise key is (seed, sample index, absolute position of the token drawn, token id): nothing of the batch.
    """
    params = [sequence.request.sampling for sequence in sequences]
    rows = SamplingRows(
        temperature=torch.tensor([p.temperature for p in params], dtype=torch.float64),
        top_k=torch.tensor([p.top_k for p in params], dtype=torch.int64),
        top_p=torch.tensor([p.top_p for p in params], dtype=torch.float64),
        min_p=torch.tensor([p.min_p for p in params], dtype=torch.float64),
        seed=torch.tensor([s.seq_seed for s in sequences], dtype=torch.int64),
        sample_index=torch.tensor([s.sample_index for s in sequences], dtype=torch.int64),
        position=torch.tensor([len(s.tokens) for s in sequences], dtype=torch.int64),
        vocab_limit=vocab_limit,
    )
    return kernels.sample(logits, rows, want_processed=any(p.processed_logprobs for p in params))


def token_logprob(logprobs: Tensor, token_id: int, top: int, processed: Tensor | None) -> TokenLogprob:
    """Read one token's entry from its raw row [V] (and processed row); alternatives descend, ties by lowest id."""
    alternatives: list[tuple[int, float]] = []
    if top > 0:
        top = min(top, logprobs.shape[0])
        # topk leaves the order of ties open: take everything down to the last value, then sort stably by id.
        floor = torch.topk(logprobs, top).values[-1]
        ids = torch.nonzero(logprobs >= floor)[:, 0]
        values = logprobs[ids]
        order = torch.sort(values, descending=True, stable=True).indices[:top]
        alternatives = [(int(ids[i]), float(values[i])) for i in order]
    return TokenLogprob(
        token_id=token_id,
        logprob=float(logprobs[token_id]),
        processed_logprob=None if processed is None else float(processed[token_id]),
        top=tuple(alternatives),
    )
