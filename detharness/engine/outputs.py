"""What comes out of the engine: completions, and the record of every step. Pure data (numpy only)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

FinishReason = Literal["stop", "length", "aborted"]
RowKind = Literal["prefill", "recompute", "decode"]


@dataclass(frozen=True)
class TokenLogprob:
    """One token's raw fp32 log-probability, its processed one (None unless asked), and the top alternatives.

    ``top`` lists (token id, raw logprob), descending, ties by ascending id.
    """

    token_id: int
    logprob: float
    processed_logprob: float | None
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Completion:
    """One finished sample of one request.

    logprobs: one entry per token when asked. prompt_logprobs: one per prompt token; the first is None, it has no
    prediction. logits: [tokens, V] fp32, the rows the tokens were drawn from, when the request captured them.
    seq_seed: the noise key that was used. cached_tokens: prompt tokens taken from the prefix cache at first
    admission. preemptions: how often this sample lost its blocks. stop_reason: the string or id that ended it.
    """

    request_id: str
    sample_index: int
    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason
    stop_reason: str | int | None
    seq_seed: int
    logprobs: tuple[TokenLogprob, ...] | None
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None
    logits: NDArray[np.float32] | None
    cached_tokens: int
    preemptions: int


@dataclass(frozen=True)
class RowGroup:
    """Consecutive rows of one sample in one step: ``token_ids`` at ``start_position``.., through ``block_table``.

    kind: "prefill" computes prompt tokens for the first time, "recompute" rebuilds KV lost to preemption,
    "decode" is one new token.
    """

    request_id: str
    sample_index: int
    kind: RowKind
    start_position: int
    token_ids: tuple[int, ...]
    block_table: tuple[int, ...]
    sampled: tuple[int, ...]


@dataclass(frozen=True)
class StepRecord:
    """One engine step: enough to replay its arithmetic and to prove which axes were exercised.

    cache_hits: (request id, sample index, tokens) for samples admitted in this step with a cached prefix.
    logit_rows: the rows whose logits were computed, in that order: prompt rows to be scored, then one per group that
    drew a token. num_blocks: pages in the pool, also where their number was found automatically.
    """

    step: int
    groups: tuple[RowGroup, ...]
    preempted: tuple[tuple[str, int], ...]
    cache_hits: tuple[tuple[str, int, int], ...]
    kernels: str
    backend: str
    plan_ids: tuple[str, ...]
    threads: int
    page_size: int
    num_blocks: int
    logit_rows: tuple[int, ...]

    @property
    def rows(self) -> int:
        """Rows in the step's forward pass."""
        return sum(len(group.token_ids) for group in self.groups)


@dataclass
class PlayResult:
    """Completions by (request id, sample index) in order of arrival, and the schedule trace."""

    completions: dict[tuple[str, int], Completion] = field(default_factory=dict)
    trace: list[StepRecord] = field(default_factory=list)
