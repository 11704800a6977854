"""Random neighbours: valid token ids, foreign to the probed prompts, ragged in length, fixed by a label."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from detharness.probes.scenario import TWIN_TEMPERATURE, Probe
from detharness.targets.protocol import Arrival, SamplingParams

SHORTEST, LONGEST = 8, 64


def forced(arrival: Arrival, **mask: Any) -> Arrival:
    """The request sampled under a mask that keeps one token: it draws what it would draw greedily, by another path."""
    return replace(arrival, sampling=replace(arrival.sampling, temperature=TWIN_TEMPERATURE, **mask))


class Fillers:
    """Draws fillers from its own generator, keyed by ``seed`` and ``label``: the same pair draws the same ones.

    Tokens come from the vocabulary without the probes' own tokens where that leaves at least half of it, so that
    a filler neither shares a prefix with a probe nor repeats it.
    """

    def __init__(self, seed: int, label: str, vocab_size: int, foreign_to: Sequence[Probe]) -> None:
        self.random = random.Random(f"{seed}/{label}")
        taken = {token for probe in foreign_to for token in probe.token_ids}
        free = [token for token in range(vocab_size) if token not in taken]
        self._alphabet = free if 2 * len(free) >= vocab_size else list(range(vocab_size))

    def tokens(self, length: int) -> tuple[int, ...]:
        """``length`` random token ids."""
        return tuple(self.random.choices(self._alphabet, k=length))

    def lengths(self, count: int) -> list[int]:
        """``count`` ragged prompt lengths."""
        return [self.random.randint(SHORTEST, LONGEST) for _ in range(count)]

    def greedy(self, max_tokens: int) -> SamplingParams:
        """How a plain filler is sampled: to its full length, so that the batch keeps its size.

        It asks for logprobs, so that its rows stand beside the probes' in that operator too.
        """
        seed = self.random.getrandbits(62)
        return SamplingParams(max_tokens=max_tokens, ignore_eos=True, seq_seed=seed, logprobs=0)

    def sampled(self, max_tokens: int) -> SamplingParams:
        """A filler that samples, with one of the usual settings."""
        mask: dict[str, Any] = self.random.choice([{"top_p": 0.9}, {"top_k": 20}, {"min_p": 0.05}, {}])
        temperature = self.random.choice([0.5, 0.8, 1.3])
        return replace(self.greedy(max_tokens), temperature=temperature, **mask)

    def arrivals(self, lengths: Sequence[int], max_tokens: int, step: int = 0) -> list[Arrival]:
        """Plain fillers of these prompt lengths, all arriving at ``step``, called ``~filler-0``, ..."""
        return [
            Arrival(step, f"~filler-{index}", self.tokens(length), self.greedy(max_tokens))
            for index, length in enumerate(lengths)
        ]
