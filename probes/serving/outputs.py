"""The replies of a run to each prompt: the reference that others are compared with, and the set of distinct outputs.

What is kept does not grow with the number of replies, only with the number of distinct ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from detharness.probes.serving.position import whole_text
from detharness.records.digests import sha256_value
from detharness.targets.serving import ServedReply

_EXAMPLES = 4  # Replies kept whole, for each prompt: those that differ first.


@dataclass
class Outputs:
    """What one prompt was answered with. ``reference``: its first reply alone."""

    reference: ServedReply | None = None
    indices: dict[str, int] = field(default_factory=dict)
    examples: dict[int, ServedReply] = field(default_factory=dict)

    def place(self, reply: ServedReply) -> tuple[int, bool]:
        """The number of the distinct output that ``reply`` is, counted from 0, and whether it is new."""
        digest = output_digest(reply)
        new = digest not in self.indices
        index = self.indices.setdefault(digest, len(self.indices))
        if new and len(self.examples) < _EXAMPLES:
            self.examples[index] = reply
        return index, new


def output_digest(reply: ServedReply) -> str:
    """Equal for equal outputs: the tokens, where the server gives their ids, and the text."""
    ids = None if reply.token_ids is None else list(reply.token_ids)
    return sha256_value([ids, printable(whole_text(reply))])


def reply_record(reply: ServedReply) -> dict[str, Any]:
    """The reply as it came, without clocks; the rivals of its tokens in pairs of text and logprob."""
    tokens = reply.tokens
    return {
        "text": printable(reply.text),
        "reasoning": None if reply.reasoning is None else printable(reply.reasoning),
        "token_ids": None if reply.token_ids is None else list(reply.token_ids),
        "logprobs": None if tokens is None else [token.logprob for token in tokens],
        "tokens": None if tokens is None else [printable(token.text) for token in tokens],
        "finish_reason": reply.finish_reason,
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": reply.completion_tokens,
        "cached_tokens": reply.cached_tokens,
        "fingerprint": None if reply.fingerprint is None else printable(reply.fingerprint),
    }


def printable(text: str) -> str:
    """``text`` as JSON can hold it: lone surrogates as escapes."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
