"""Two replies made comparable: from the first token on that both have."""

from __future__ import annotations

from detharness.probes.divergence import Observation
from detharness.targets.protocol import Completion


def aligned_replies(
    reference: Completion, other: Completion, *, greedy: bool = False
) -> tuple[Observation, Observation]:
    """Both replies by absolute position: a prompt may hold the head of the other's reply.

    ``greedy``: whether their tokens are arg-maxes, so that a margin can be classed.
    """
    replies = [Observation.of(completion, greedy=greedy) for completion in (reference, other)]
    start = max(reply.prompt_length for reply in replies)
    first, second = (reply.from_token(start - reply.prompt_length) for reply in replies)
    return first, second
