"""The PathTarget protocol: one model through the several paths by which its library serves it, for probes.

The paths are the library's own. ``generate`` continues one prompt, or several at once with padding on their left;
continuous batching lets requests come and go between forward passes. Replies are greedy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from detharness.errors import DetharnessError

__all__ = ["ForwardPass", "PathError", "PathReply", "PathRequest", "PathRun", "PathTarget"]


class PathError(DetharnessError):
    """A path cannot be played here, for example by this version of the library; the message says why."""


@dataclass(frozen=True)
class PathRequest:
    """One prompt to be continued, greedily.

    watched: its reply is wanted; nobody reads those of others. arrives: continuous batching only: the request joins
    when that many forward passes were done, or earlier if everybody before it is done.
    """

    request_id: str
    token_ids: tuple[int, ...]
    max_tokens: int
    ignore_eos: bool = True
    watched: bool = True
    arrives: int = 0


@dataclass(frozen=True)
class PathReply:
    """One reply. logits [tokens, V] fp32: the rows that the tokens were chosen from. logprobs [tokens]: the raw fp32
    log-softmax of the chosen tokens; gaps [tokens]: that of the best less that of the second. stopped: it ended with
    an end token, which is its last.
    """

    token_ids: tuple[int, ...]
    text: str
    logits: NDArray[np.float32]
    logprobs: NDArray[np.float32]
    gaps: NDArray[np.float32]
    stopped: bool


@dataclass(frozen=True)
class ForwardPass:
    """One forward pass as the model's own inputs showed it: who had rows in it, and per request how many new tokens,
    and how many padded positions before them. ``threads``: of torch, where it ran.
    """

    requests: tuple[str, ...]
    tokens: tuple[int, ...]
    padding: tuple[int, ...]
    threads: int


@dataclass(frozen=True)
class PathRun:
    """The replies of the watched requests, and every forward pass."""

    replies: Mapping[str, PathReply]
    forwards: tuple[ForwardPass, ...]


class PathTarget(Protocol):
    """One model in one dtype, on the paths of its library."""

    @property
    def dtype(self) -> str:
        """One of ``DTYPES``."""

    @property
    def backend(self) -> str:
        """The library, its version, and what else names the computing."""

    @property
    def context_length(self) -> int:
        """Tokens of the model's context, prompt and reply together."""

    @property
    def vocab_size(self) -> int:
        """Ids below this are real tokens."""

    def with_dtype(self, dtype: str) -> PathTarget:
        """The same model in another dtype."""

    def describe(self) -> dict[str, Any]:
        """Model digest, tokenizer digest, and how the paths are set up: what belongs in a manifest."""

    def tokenize(self, text: str) -> tuple[int, ...]:
        """Token ids of raw text."""

    def render_chat(self, messages: Sequence[dict[str, Any]]) -> tuple[int, ...]:
        """Token ids of a conversation rendered by the model's chat template."""

    def generate(self, requests: Sequence[PathRequest], pad_to: int = 0) -> PathRun:
        """``generate`` over all of ``requests`` at once; each prompt is padded on its left to the longest one's
        length, or to ``pad_to`` tokens if that is more. One request without padding is the plain call.
        """

    def continuous_batching(self, requests: Sequence[PathRequest]) -> PathRun:
        """All of ``requests`` through the library's continuous batching; PathError where it cannot run."""
