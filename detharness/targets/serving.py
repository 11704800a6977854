"""The ServingTarget protocol: what a probe asks of somebody's running server.

Nothing of the schedule is in our hands there: requests go out, replies come back, at the clock's time. Clocks are for
load and timing; what is compared holds none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from detharness.targets.generation import GenerationError, Message

__all__ = ["Api", "GenerationError", "Message", "ServedReply", "ServedRequest", "ServedToken", "ServingTarget"]

Api = Literal["chat", "completions"]


@dataclass(frozen=True, kw_only=True)
class ServedRequest:
    """One request. Exactly one of ``messages`` (chat), ``prompt`` and ``token_ids`` (completions) is given.

    logprobs: ask for the chosen token's logprob and those of the N best; None: ask for none. token_ids_back: ask for
    the reply's token ids, by every name a server may know. seed None: the server is told nothing of seeds.
    cache_salt: keeps a request from what other salts left in the prefix cache, where the server knows salts.
    fields: further fields of the body, as they are; they win.
    """

    messages: Sequence[Message] | None = None
    prompt: str | None = None
    token_ids: tuple[int, ...] | None = None
    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    seed: int | None = None
    logprobs: int | None = None
    token_ids_back: bool = False
    cache_salt: str | None = None
    stream: bool = False
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ServedToken:
    """One logprob entry as the server gave it; None for what it left out or what is no number.

    raw: the token's bytes (from ``bytes``, or a text without a replacement character). top: (text, logprob) of the best
    tokens at this place, best first.
    """

    text: str
    raw: bytes | None = None
    token_id: int | None = None
    logprob: float | None = None
    top: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class ServedReply:
    """What came back, and when. ``tokens``: its logprob entries; None where there are none, or not for all.

    token_ids_by: the name of the field the ids came in; "logprobs": in the entries. chunks: events of the stream that
    held text or ids, None without a stream. seconds: from sending to the end; first_seconds: to the first text or id of
    a stream. waited_seconds: before sending, for one of a stated number of connections.
    """

    text: str
    reasoning: str | None = None
    token_ids: tuple[int, ...] | None = None
    token_ids_by: str | None = None
    tokens: tuple[ServedToken, ...] | None = None
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    fingerprint: str | None = None
    chunks: int | None = None
    seconds: float = 0.0
    first_seconds: float | None = None
    waited_seconds: float = 0.0


class ServingTarget(Protocol):
    """A server, asked for as many replies at once as the caller likes."""

    @property
    def api(self) -> Api:
        """Which of the two APIs is asked."""

    async def describe(self) -> dict[str, Any]:
        """URL, model, who the server says it is, context length; UsageError where it cannot be reached."""

    async def ask(self, request: ServedRequest) -> ServedReply:
        """One reply; GenerationError where there is none."""

    async def tokenize(self, text: str) -> tuple[int, ...] | None:
        """Token ids of raw text by the server's own ``/tokenize``; None where it has none."""

    async def score(self, prompt: str, continuation: str) -> tuple[ServedToken, ...] | None:
        """The continuation's tokens as the server scores them after ``prompt`` (teacher-forced), each with its best
        rivals; None where the server cannot score text.
        """

    async def close(self) -> None:
        """Close every connection."""
