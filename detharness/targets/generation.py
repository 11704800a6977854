"""The GenerationTarget protocol: what an evaluation asks of the thing that answers.

One conversation in, one reply out, many at once. The engine, an OpenAI-compatible endpoint and transformers offer it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

Message = dict[str, Any]
"""{"role", "content"}: text, or parts {"type": "text", "text"} and {"type": "image_url", "image_url": {"url"}}."""


@dataclass(frozen=True, kw_only=True)
class GenerationRequest:
    """One conversation and how its reply is drawn. ``seed`` None: the target is told nothing of seeds."""

    messages: Sequence[Message]
    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    stop: tuple[str, ...] = ()
    seed: int | None = None


@dataclass(frozen=True)
class Reply:
    """What came back. ``logprobs``: the chosen tokens' raw fp32 logprobs, where the target gives them.

    batch: rows per engine step while the request ran: {"min", "max", "mean", "first_step", "last_step"}; None where
    unknown. text may be None (an endpoint's null content); it is never invented.
    """

    text: str | None
    reasoning: str | None = None
    token_ids: tuple[int, ...] | None = None
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    logprobs: tuple[float, ...] | None = None
    batch: dict[str, Any] | None = field(default=None)


class GenerationError(Exception):
    """A request that got no reply. Never an answer.

    kind: "http_429", "http_500", "timeout", "connection", "bad_response", "refused", ... retriable: whether asking
    again may help. retry_after: seconds the server asked for, if it did. ``str`` is one plain sentence, hostile text
    in it escaped.
    """

    def __init__(self, kind: str, detail: str, *, retriable: bool, retry_after: float | None = None) -> None:
        super().__init__(detail)
        self.kind = kind
        self.retriable = retriable
        self.retry_after = retry_after


class GenerationTarget(Protocol):
    """Answers conversations, many at once."""

    @property
    def context_length(self) -> int | None:
        """Tokens the context holds, prompt and reply together; None where the target does not say."""

    @property
    def accepts_images(self) -> bool:
        """Whether image parts may be sent."""

    def describe(self) -> dict[str, Any]:
        """What identifies the target in a manifest: form, model, digests, kernels, backend, dtype; no key, no path."""

    def count_prompt_tokens(self, messages: Sequence[Message]) -> int | None:
        """Tokens of the rendered conversation; None where only the server could count them."""

    async def generate(self, request: GenerationRequest) -> Reply:
        """One reply; GenerationError where there is none."""

    async def close(self) -> None:
        """Release connections and threads."""
