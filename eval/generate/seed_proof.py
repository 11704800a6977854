"""Does the seed reach the target? A seeded pair must be equal, another seed must give something else."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from detharness.records.digests import sha256_value
from detharness.targets.generation import GenerationError, GenerationRequest, GenerationTarget, Reply

_TOKENS = 24  # Short: two replies this long agree by chance only where the model is all but certain.
_CONTROLS = 4


@dataclass(frozen=True)
class SeedProof:
    """reaches: the pair is equal and a control differs. ignored: the pair differs. undecided: everything is equal.

    not_tested: greedy, where no seed is used, or the target did not answer; ``reason`` says which.
    """

    verdict: Literal["reaches", "ignored", "undecided", "not_tested"]
    reason: str
    pair: tuple[str, ...] = ()
    controls: tuple[str, ...] = ()

    def as_record(self) -> dict[str, Any]:
        """Plain JSON; replies are named by digest."""
        return {
            "verdict": self.verdict,
            "reason": self.reason,
            "pair": list(self.pair),
            "controls": list(self.controls),
        }


async def prove_seed(target: GenerationTarget, request: GenerationRequest) -> SeedProof:
    """Ask ``request`` twice under its seed and then without any, up to four times."""
    if request.temperature == 0.0:
        return SeedProof("not_tested", "temperature 0 uses no seed")
    short = replace(request, max_tokens=min(_TOKENS, request.max_tokens))
    try:
        pair = tuple([_digest(await target.generate(short)) for _ in range(2)])
        if pair[0] != pair[1]:
            return SeedProof("ignored", "the same seed gave two different replies", pair)
        controls: list[str] = []
        for _ in range(_CONTROLS):
            controls.append(_digest(await target.generate(replace(short, seed=None))))
            if controls[-1] != pair[0]:
                reason = "the same seed gave the same reply, and no seed gave another"
                return SeedProof("reaches", reason, pair, tuple(controls))
        return SeedProof("undecided", "every reply was the same, with and without a seed", pair, tuple(controls))
    except GenerationError as error:
        return SeedProof("not_tested", f"{error.kind}: {error}")


def _digest(reply: Reply) -> str:
    return sha256_value([reply.text, reply.reasoning])
