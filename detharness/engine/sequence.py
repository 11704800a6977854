"""A request as it is asked for, and one sample of it as it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from detharness.checkpoints.detokenize import IncrementalDetokenizer
from detharness.engine.outputs import Completion, FinishReason, TokenLogprob
from detharness.engine.params import SamplingParams


@dataclass(frozen=True)
class TokenEvent:
    """One token, as a streaming callback sees it. ``text`` is what became certain with it (it may be empty)."""

    request_id: str
    sample_index: int
    token_id: int
    text: str
    finish_reason: FinishReason | None


@dataclass(frozen=True)
class Request:
    """A prompt in token ids with its sampling parameters.

    on_token: called for every token, in the engine's thread, at the end of the step that drew it. An abort calls it no
    more: the completion holds what was held back.
    """

    request_id: str
    token_ids: tuple[int, ...]
    sampling: SamplingParams
    capture_logits: bool = False
    on_token: Callable[[TokenEvent], None] | None = None


@dataclass(eq=False)
class Sequence:
    """One sample of a request: its tokens, its pages, and how far its KV reaches.

    computed: tokens whose KV is in ``block_table``. high_water: the furthest ``computed`` ever was; rows below it
    are recomputation. page_keys: hash chain of its full pages.
    """

    request: Request
    sample_index: int
    seq_seed: int
    order: int
    detokenizer: IncrementalDetokenizer
    tokens: list[int]
    computed: int = 0
    high_water: int = 0
    block_table: list[int] = field(default_factory=list)
    page_keys: list[bytes] = field(default_factory=list)
    cached_tokens: int | None = None
    preemptions: int = 0
    text: str = ""
    streamed: int = 0
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    logits: list[NDArray[np.float32]] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None

    @property
    def name(self) -> tuple[str, int]:
        """(request id, sample index)."""
        return self.request.request_id, self.sample_index

    @property
    def prompt_length(self) -> int:
        """Prompt tokens."""
        return len(self.request.token_ids)

    @property
    def generated(self) -> int:
        """Tokens sampled so far."""
        return len(self.tokens) - self.prompt_length

    def pages_for(self, tokens: int, page_size: int) -> int:
        """Pages still missing to hold ``tokens`` tokens."""
        return max(0, -(-tokens // page_size) - len(self.block_table))

    def completion(self) -> Completion:
        """The finished sample as the caller sees it."""
        assert self.finish_reason is not None
        sampling = self.request.sampling
        return Completion(
            request_id=self.request.request_id,
            sample_index=self.sample_index,
            prompt_token_ids=self.request.token_ids,
            token_ids=tuple(self.tokens[self.prompt_length :]),
            text=self.text,
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
            seq_seed=self.seq_seed,
            logprobs=tuple(self.logprobs) if sampling.logprobs is not None else None,
            prompt_logprobs=(None, *self.prompt_logprobs) if sampling.prompt_logprobs is not None else None,
            logits=np.stack(self.logits) if self.logits else None,
            cached_tokens=self.cached_tokens or 0,
            preemptions=self.preemptions,
        )
