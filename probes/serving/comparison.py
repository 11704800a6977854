"""Two replies of a server compared: where the tokens part, where the logprobs do, and how firm the choice was.

A server shows logprobs of the chosen tokens and of some rivals, and no logits: what is compared is what it shows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median
from typing import Any

from detharness.probes.divergence import DivergenceClass
from detharness.probes.serving.position import Parting, parting, token_count
from detharness.targets.serving import ServedReply, ServedToken

NEAR_TIE = 0.25
"""Nats. Two bf16 logits between 16 and 32 lie 1/8 apart, so one step of rounding on each side closes this gap. A wider
one is a near tie only where drift as wide as half of it was seen before."""


@dataclass(frozen=True)
class Comparison:
    """What two replies have in common.

    tokens: token indices compared, the parting included. gaps: of the chosen tokens' logprobs before the parting, in
    nats. margin: gap of the reference's two best tokens where the replies part. non_finite: whether a logprob was no
    number.
    """

    tokens: int
    parting: Parting | None
    first_logprob: int | None
    max_gap: float | None
    median_gap: float | None
    margin: float | None
    divergence_class: DivergenceClass | None
    non_finite: bool

    def as_record(self, prompt_tokens: int | None) -> dict[str, Any]:
        """Plain values for a record, under the names that records of other targets use."""
        found = self.parting
        return {
            "tokens": self.tokens,
            "first_token": None if found is None else found.index,
            "position": None if found is None or prompt_tokens is None else prompt_tokens + found.index,
            "method": None if found is None else found.method,
            "interval": None if found is None else list(found.interval),
            "byte_offset": None if found is None else found.byte_offset,
            "first_logprob": self.first_logprob,
            "first_logits": None,
            "max_logprob_gap": self.max_gap,
            "median_logprob_gap": self.median_gap,
            "max_ulp": None,
            "margin": self.margin,
            "divergence_class": self.divergence_class,
            "non_finite": self.non_finite,
        }


def compare(reference: ServedReply, other: ServedReply, *, greedy: bool) -> Comparison:
    """Compare two replies to one prompt. ``greedy``: tokens are arg-maxes, so a gap of the best two is the margin."""
    found = parting(reference, other)
    pairs = list(zip(reference.tokens or (), other.tokens or (), strict=False))
    shared = pairs if found is None else pairs[: found.index]
    numbers = [
        (index, left.logprob, right.logprob)
        for index, (left, right) in enumerate(shared)
        if left.logprob is not None and right.logprob is not None
    ]
    gaps = [abs(left - right) for _, left, right in numbers]
    margin = None
    if found is not None and found.method in ("token ids", "logprob entries"):
        margin = top_two_gap(reference, found.index)
    drift = max(gaps, default=None)
    return Comparison(
        tokens=min(token_count(reference), token_count(other)) if found is None else found.index + 1,
        parting=found,
        first_logprob=next((index for index, left, right in numbers if left != right), None),
        max_gap=drift,
        median_gap=median(gaps) if gaps else None,
        margin=margin,
        divergence_class=_class(margin, drift) if greedy else None,
        non_finite=len(numbers) < len(shared),
    )


def margins(reply: ServedReply) -> list[float | None]:
    """The gap of the two best tokens at every place of the reply, None where the server does not show two."""
    return [_gap(token) for token in reply.tokens or ()]


def top_two_gap(reply: ServedReply, index: int) -> float | None:
    """The gap at one place; None behind the reply's end."""
    tokens = reply.tokens or ()
    return _gap(tokens[index]) if index < len(tokens) else None


def _gap(token: ServedToken) -> float | None:
    if len(token.top) < 2:
        return None
    gap = token.top[0][1] - token.top[1][1]
    return gap if math.isfinite(gap) else None


def _class(margin: float | None, drift: float | None) -> DivergenceClass | None:
    if margin is None:
        return None
    if margin == 0.0:
        return "tie"
    return "near_tie" if margin <= max(NEAR_TIE, 2 * (drift or 0.0)) else "confident"
