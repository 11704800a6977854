"""What the plays of one arm are built from: the probes, their neighbours, and how far the arm goes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from detharness.probes.scenario import Probe, Watch, solo_key
from detharness.probes.traffic.fillers import LONGEST, Fillers
from detharness.targets.paths import PathRequest

Path = Literal["generate", "continuous_batching"]


@dataclass(frozen=True)
class Play:
    """One call of one path. ``key`` is unique within an arm and names the play in records.

    pad_to: for ``generate``. at_the_end: it is played when all others were.
    """

    key: str
    path: Path
    requests: tuple[PathRequest, ...]
    watches: tuple[Watch, ...] = ()
    pad_to: int = 0
    at_the_end: bool = False

    @property
    def cost(self) -> int:
        """A rough size for the time left: one unit is about eight decode steps of one row, or 100 prompt tokens."""
        prompts = [len(request.token_ids) for request in self.requests]
        if self.path == "generate":
            prompts = [max(self.pad_to, *prompts)] * len(prompts)
        steps = max(request.arrives + request.max_tokens for request in self.requests)
        return 1 + steps * (1 + len(prompts)) // 16 + sum(prompts) // 100


@dataclass(frozen=True)
class PathBench:
    """probes: those under test; quick: one of them stands for all where each would have plays of its own.

    context_length: no neighbour grows beyond it. ``round`` numbers the rounds of ``--trials``.
    """

    probes: tuple[Probe, ...]
    vocab_size: int
    context_length: int
    seed: int
    quick: bool
    round: int = 0

    @property
    def each(self) -> tuple[Probe, ...]:
        """The probes that have plays of their own: all, or quickly the shortest alone."""
        shortest = min(self.probes, key=lambda probe: len(probe.token_ids))
        return (shortest,) if self.quick else self.probes

    def groups(self, size: int) -> Iterator[tuple[int, tuple[Probe, ...]]]:
        """All probes in file order, ``size`` at a time, numbered."""
        for start in range(0, len(self.probes), size):
            yield start // size, self.probes[start : start + size]

    def request(self, probe: Probe, name: str | None = None, *, watched: bool = True, arrives: int = 0) -> PathRequest:
        """The probe as a request, called after it unless named."""
        return PathRequest(
            probe.id if name is None else name,
            probe.token_ids,
            probe.sampling.max_tokens,
            ignore_eos=probe.sampling.ignore_eos,
            watched=watched,
            arrives=arrives,
        )

    def fillers(self, label: str) -> Fillers:
        """Neighbours for one use; another label or another round draws others."""
        return Fillers(self.seed, f"{self.round}/paths/{label}", self.vocab_size, self.probes)

    def filler(
        self, fillers: Fillers, index: int, max_tokens: int, length: int | None = None, arrives: int = 0
    ) -> PathRequest:
        """One neighbour, called ``~filler-INDEX``, of ``length`` prompt tokens or of a ragged one."""
        wanted = fillers.lengths(1)[0] if length is None else length
        tokens = fillers.tokens(min(wanted, self.context_length - max_tokens))
        return PathRequest(f"~filler-{index}", tokens, max_tokens, watched=False, arrives=arrives)

    def solo(self, probe: Probe) -> Play:
        """The probe alone through ``generate``, without padding: the reference of everything."""
        return Play(solo_key(probe.id), "generate", (self.request(probe),))

    @property
    def longer(self) -> int:
        """How much longer a neighbour is where it is to set the width of the padding."""
        return LONGEST // 2 + 5
