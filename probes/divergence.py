"""Two replies to one prompt, compared bit by bit: where they part, by how much, and how firm the choice was.

Every token index here is relative to the completion; the absolute position adds the prompt. Rows are compared up
to the first differing token, which is included: its logits row still saw equal tokens on both sides. Later rows
saw different tokens and say nothing.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from detharness.targets.protocol import Completion

DivergenceClass = Literal["tie", "near_tie", "confident"]

_UNIT_ROUNDOFF = {"fp32": 2.0**-24, "bf16": 2.0**-8, "bf16w": 2.0**-24}


@dataclass(frozen=True)
class Observation:
    """One reply as it is compared. ``logits`` [tokens, V] fp32 or None; ``gaps``: top-2 gap of each row, in nats.

    ``stopped``: the reply ended by itself (end token or stop string), so being shorter means something.
    ``greedy``: the tokens are arg-maxes, so a top-2 gap is the margin of the choice.
    """

    token_ids: tuple[int, ...]
    prompt_length: int
    logprobs: NDArray[np.float32]
    gaps: NDArray[np.float32]
    logits: NDArray[np.float32] | None
    stopped: bool
    greedy: bool

    @classmethod
    def of(cls, completion: Completion, *, greedy: bool) -> Observation:
        """Take what is compared out of a completion, which must carry logprobs with the top 2."""
        if completion.logprobs is None:
            raise ValueError(f"request {completion.request_id!r} came back without logprobs")
        tops = [entry.top for entry in completion.logprobs]
        return cls(
            token_ids=completion.token_ids,
            prompt_length=len(completion.prompt_token_ids),
            logprobs=np.array([entry.logprob for entry in completion.logprobs], dtype=np.float32),
            gaps=np.array([top[0][1] - top[1][1] if len(top) > 1 else math.inf for top in tops], dtype=np.float32),
            logits=completion.logits,
            stopped=completion.finish_reason == "stop",
            greedy=greedy,
        )

    def from_token(self, offset: int) -> Observation:
        """The reply from its token ``offset`` on, as if the tokens before it belonged to the prompt."""
        return Observation(
            self.token_ids[offset:],
            self.prompt_length + offset,
            self.logprobs[offset:],
            self.gaps[offset:],
            None if self.logits is None else self.logits[offset:],
            self.stopped,
            self.greedy,
        )


@dataclass(frozen=True)
class Comparison:
    """What two replies have in common.

    tokens: token indices compared. first_token, first_logprob, first_logits: first index at which the token, the
    chosen token's logprob bits, or any logits bit differ. position: absolute position of ``first_token``.
    max_logprob_gap, median_logprob_gap: widest and median gap between the chosen tokens' logprobs before the tokens
    part, in nats; the median is None where they part at once.
    max_ulp: largest distance of two logits in fp32 units in the last place. max_drift: largest difference of two
    logits; None where logits were not captured or are not finite. margin: top-2 gap of the reference row at
    ``first_token``. non_finite: whether a NaN or infinity stood in the rows compared.
    """

    tokens: int
    first_token: int | None
    position: int | None
    first_logprob: int | None
    first_logits: int | None
    max_logprob_gap: float | None
    median_logprob_gap: float | None
    max_ulp: int | None
    max_drift: float | None
    margin: float | None
    divergence_class: DivergenceClass | None
    non_finite: bool

    @property
    def moved(self) -> bool:
        """Whether any bit moved."""
        return any(first is not None for first in (self.first_token, self.first_logprob, self.first_logits))

    def as_record(self) -> dict[str, Any]:
        """Plain values for a record."""
        return asdict(self)


def compare(reference: Observation, other: Observation, dtype: str) -> Comparison:
    """Compare two replies to one prompt; ``dtype`` is the one both were computed in.

    A reply that was cut (length, cancelled) is compared as far as it goes. A reply that ended by itself where the
    other goes on differs at that index.
    """
    if reference.prompt_length != other.prompt_length:
        raise ValueError(f"prompts of {reference.prompt_length} and {other.prompt_length} tokens are not comparable")
    first_token, tokens = _first_token(reference, other)
    rows = min(tokens, len(reference.token_ids), len(other.token_ids))
    before = first_token if first_token is not None else rows
    first_logprob = _first(_bits(reference.logprobs[:before]) != _bits(other.logprobs[:before]))
    if first_logprob is None:
        first_logprob = first_token  # Another token's logprob: the pair differs where the tokens do.
    gap = np.abs(reference.logprobs[:before].astype(np.float64) - other.logprobs[:before].astype(np.float64))
    logits = _compare_logits(reference, other, rows)
    margin, kind = (None, None) if first_token is None else _margin(reference, other, first_token, dtype)
    return Comparison(
        tokens=tokens,
        first_token=first_token,
        position=None if first_token is None else reference.prompt_length + first_token,
        first_logprob=first_logprob,
        first_logits=logits.first,
        max_logprob_gap=_finite(float(gap.max(initial=0.0))),
        median_logprob_gap=_finite(float(np.median(gap))) if gap.size else None,
        max_ulp=logits.max_ulp,
        max_drift=logits.max_drift,
        margin=margin,
        divergence_class=kind,
        non_finite=logits.non_finite or not bool(np.isfinite(gap).all()),
    )


def _first_token(reference: Observation, other: Observation) -> tuple[int | None, int]:
    """Index of the first differing token (None if there is none) and the number of indices compared."""
    pairs = zip(reference.token_ids, other.token_ids, strict=False)
    for index, (left, right) in enumerate(pairs):
        if left != right:
            return index, index + 1
    shorter, longer = sorted((reference, other), key=lambda reply: len(reply.token_ids))
    length = len(shorter.token_ids)
    if shorter.stopped and length < len(longer.token_ids):
        return length, length + 1
    return None, length


@dataclass(frozen=True)
class _Logits:
    first: int | None = None
    max_ulp: int | None = None
    max_drift: float | None = None
    non_finite: bool = False


def _compare_logits(reference: Observation, other: Observation, rows: int) -> _Logits:
    if reference.logits is None or other.logits is None:
        return _Logits()
    first, max_ulp, drift = None, 0, 0.0
    for index in range(rows):
        left, right = reference.logits[index], other.logits[index]
        if np.array_equal(_bits(left), _bits(right)):
            continue
        first = index if first is None else first
        max_ulp = max(max_ulp, int(ulp_distance(left, right).max()))
        drift = max(drift, _row_drift(left, right))
    finite = all(
        bool(np.isfinite(reply.logits[:rows]).all()) for reply in (reference, other) if reply.logits is not None
    )
    return _Logits(first, max_ulp, _finite(drift), not finite)


def _row_drift(left: NDArray[np.float32], right: NDArray[np.float32]) -> float:
    """Largest difference of two rows; an infinity where one of them holds what the other does not."""
    with np.errstate(invalid="ignore"):
        drift = np.abs(left.astype(np.float64) - right.astype(np.float64))
    return math.inf if bool(np.isnan(drift).any()) else float(drift.max(initial=0.0))


def ulp_distance(left: NDArray[np.float32], right: NDArray[np.float32]) -> NDArray[np.int64]:
    """Distance of two fp32 arrays in units in the last place: how many floats lie between each pair.

    Bit patterns are read as integers and mapped so that their order is the order of the floats; +0 and -0 are one
    apart, because their bits differ. NaN patterns stand beyond the infinities.
    """
    distance: NDArray[np.int64] = np.abs(_ordered(left) - _ordered(right))
    return distance


def _ordered(values: NDArray[np.float32]) -> NDArray[np.int64]:
    bits: NDArray[np.int64] = np.ascontiguousarray(values, dtype=np.float32).view(np.int32).astype(np.int64)
    # A negative float's pattern grows away from zero: -1 - magnitude puts it below +0, -0 at -1.
    ordered: NDArray[np.int64] = np.where(bits >= 0, bits, -1 - (bits & 0x7FFFFFFF))
    return ordered


def _margin(
    reference: Observation, other: Observation, index: int, dtype: str
) -> tuple[float | None, DivergenceClass | None]:
    """Top-2 gap of the reference row at ``index``, and what it says about the choice.

    tie: the two best are equal. near_tie: rounding explains the flip: the gap is no wider than what the observed
    drift of two logits can close (twice the row's largest), and no wider than sqrt(u) of the row's largest logit,
    u being the unit roundoff: an arithmetic that loses more than half of its digits is wrong, not rounded.
    confident: anything else, so look for a fault of logic. None under sampling, where noise is part of the margin,
    and for a reply that ended (no row of the shorter one stands there).
    """
    if index >= len(reference.token_ids):
        return None, None
    if reference.logits is None:
        margin = _finite(float(reference.gaps[index]))
        return margin, ("tie" if margin == 0.0 and reference.greedy else None)
    row = reference.logits[index]
    margin = _row_margin(row)
    if margin is None:
        return None, None
    if not reference.greedy:
        return margin, None
    if margin == 0.0:
        return margin, "tie"
    if other.logits is None or index >= len(other.logits):
        return margin, None
    bound = math.sqrt(_UNIT_ROUNDOFF[dtype]) * float(np.abs(row).max())
    near = margin <= min(2 * _row_drift(row, other.logits[index]), bound)
    return margin, ("near_tie" if near else "confident")


def margins(observation: Observation) -> list[float | None]:
    """Top-2 gap of each row: of its logits where they were captured, else of the logprobs; None where not finite."""
    if observation.logits is None:
        return [_finite(float(gap)) for gap in observation.gaps]
    return [_row_margin(row) for row in observation.logits]


def _row_margin(row: NDArray[np.float32]) -> float | None:
    """Gap of the two largest logits; None for a row with a NaN or an infinity, or without a second."""
    if row.size < 2 or not bool(np.isfinite(row).all()):
        return None
    second, best = np.partition(row, row.size - 2)[-2:].astype(np.float64)
    return float(best - second)


def _bits(values: NDArray[np.float32]) -> NDArray[np.uint32]:
    return np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)


def logprob_bits(observation: Observation) -> list[int]:
    """The chosen tokens' logprobs as fp32 bit patterns: exact, and safe for NaN."""
    return [int(bits) for bits in _bits(observation.logprobs)]


def _first(differs: NDArray[np.bool_]) -> int | None:
    found = np.flatnonzero(differs)
    return int(found[0]) if found.size else None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
