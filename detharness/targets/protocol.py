"""The Target protocol: what a probe, an evaluation or a benchmark may ask of the thing under test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from detharness.engine.outputs import Completion, PlayResult, RowGroup, StepRecord
from detharness.engine.params import (
    DTYPES,
    EngineConfig,
    FreePages,
    MemoryPolicy,
    PagePlacement,
    PrefixCaching,
    SamplingParams,
)

if TYPE_CHECKING:
    from detharness.kernels.contract import KernelSet

__all__ = [
    "DTYPES",
    "Arrival",
    "Completion",
    "EngineConfig",
    "FreePages",
    "MemoryPolicy",
    "Observation",
    "PagePlacement",
    "PlayResult",
    "PrefixCaching",
    "RowGroup",
    "SamplingParams",
    "ScriptedTarget",
    "StepRecord",
]


@dataclass(frozen=True)
class Arrival:
    """One request of a traffic script: it arrives before engine step ``step``.

    cancel_step: the request is aborted before that step, if still running. capture_logits keeps the logits rows.
    """

    step: int
    request_id: str
    token_ids: tuple[int, ...]
    sampling: SamplingParams
    cancel_step: int | None = None
    capture_logits: bool = False


@dataclass(frozen=True)
class Observation:
    """One operator output row seen during a play: fp32 or bf16 values as raw bits, with where it came from."""

    step: int
    request_id: str
    sample_index: int
    position: int
    layer: int
    operator: str
    bits: NDArray[np.integer[Any]]


class ScriptedTarget(Protocol):
    """A target whose schedule can be scripted step by step: the engine."""

    @property
    def kernels(self) -> str:
        """The kernel set's name: "torch", "invariant", or "mutant" for one that is faulty on purpose."""

    @property
    def backend(self) -> str:
        """How the kernel set is built."""

    @property
    def certificate(self) -> dict[str, Any] | None:
        """{"id", "status"} of the kernels' certificate on this host; None for kernels that do not claim row purity."""

    @property
    def dtype(self) -> str:
        """One of ``DTYPES``."""

    @property
    def context_length(self) -> int:
        """Tokens the model's context holds, prompt and reply together."""

    @property
    def vocab_size(self) -> int:
        """Ids below this are real tokens."""

    @property
    def dispatch_borders(self) -> tuple[int, ...]:
        """Row counts at which its kernels change their way of working, ascending; () if none is known."""

    def with_kernels(self, kernels: str | KernelSet, dtype: str | None = None) -> ScriptedTarget:
        """The same checkpoint under another kernel set (and dtype); weights are shared where possible.

        By name, or a kernel set of somebody else's: a mutant, a kernel under test.
        """

    def describe(self) -> dict[str, Any]:
        """Model digest, tokenizer digest, family, notes: what belongs in a manifest."""

    def tokenize(self, text: str) -> tuple[int, ...]:
        """Token ids of raw text; special tokens are added only where the tokenizer itself says so."""

    def render_chat(self, messages: Sequence[dict[str, Any]]) -> tuple[int, ...]:
        """Token ids of a conversation rendered by the checkpoint's chat template, with the generation prompt."""

    def detokenize(self, token_ids: Sequence[int]) -> str:
        """Text of token ids."""

    def play(self, arrivals: Sequence[Arrival], config: EngineConfig) -> PlayResult:
        """Run a traffic script to its end on a fresh engine. ``config.dtype`` must be this target's dtype."""

    def step_trace(self) -> Sequence[StepRecord]:
        """The schedule trace of the last play."""

    def replay(self, trace: Sequence[StepRecord]) -> list[NDArray[np.float32]]:
        """Feed a recorded schedule to the model, step by step; logits [len(logit_rows), V] for each step."""

    def observe(
        self,
        layer: int | None,
        operator: str | None,
        row: tuple[str, int] | None,
        into: Callable[[Observation], None] | None = None,
    ) -> AbstractContextManager[list[Observation]]:
        """While open, collect operator output rows; None means every one. ``row`` is (request id, position).

        They come in the order in which they were computed: by step, by operator, by row. With ``into`` each is handed
        to it and none is kept, for plays whose rows would fill the memory.
        """

    def score(self, token_ids: Sequence[int]) -> list[float | None]:
        """Raw fp32 logprob of each token given those before it, in one prefill; None for the first."""
