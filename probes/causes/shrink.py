"""The smallest traffic that still moves a reply: delta debugging over the script and its configuration.

Reductions are tried round after round until a whole round takes nothing away: then no single one is left (1-minimal).
A candidate fails when its trial's reply differs in any bit from that of its own reference, played anew for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from detharness.errors import DetharnessError
from detharness.probes.causes.failure import Failure, Play, Side
from detharness.probes.causes.reductions import REDUCTIONS
from detharness.probes.causes.replies import aligned_replies
from detharness.probes.divergence import Comparison, Observation, compare
from detharness.targets.protocol import PlayResult, ScriptedTarget

MOST_REPLAYS = 400


@dataclass(frozen=True)
class Shrunk:
    """What is left, how its replies differ, and what it took.

    replies: the reference's and the trial's, aligned. threads: intra-op threads that computed them, in that order.
    replays: plays run. minimal: whether no single reduction is left that fails; False where the bound on replays, or an
    interrupt, came first.
    """

    failure: Failure
    comparison: Comparison
    replies: tuple[Observation, Observation]
    threads: tuple[int, int]
    before: dict[str, int]
    replays: int
    most_replays: int
    minimal: bool

    def as_record(self) -> dict[str, Any]:
        """Sizes before and after, and what it took."""
        return {
            "before": self.before,
            "after": sizes(self.failure),
            "replays": self.replays,
            "most_replays": self.most_replays,
            "minimal": self.minimal,
        }


def sizes(failure: Failure) -> dict[str, int]:
    """Of the trial: requests, tokens of their prompts and of their replies at full length, last arrival's step."""
    arrivals = failure.trial.play.arrivals
    return {
        "requests": len(arrivals),
        "prompt_tokens": sum(len(a.token_ids) for a in arrivals),
        "reply_tokens": sum(a.sampling.max_tokens * a.sampling.n for a in arrivals),
        "last_step": max(a.step for a in arrivals),
    }


def shrink(
    target: ScriptedTarget,
    failure: Failure,
    most_replays: int = MOST_REPLAYS,
    stop: Callable[[], bool] = lambda: False,
) -> Shrunk | None:
    """The smallest failure that ``failure`` leads to; None where it does not fail when played again.

    ``stop`` is asked before each play: where it says yes, what was reached until then is returned.
    """
    search = _Search(target, most_replays, stop)
    if not search.fails(failure):
        return None
    before = None
    while before != search.held and not search.exhausted:
        before = search.held
        for reduce in REDUCTIONS:
            reduce(search)
    return Shrunk(
        failure=search.held,
        comparison=search.comparison,
        replies=search.replies,
        threads=search.threads,
        before=sizes(failure),
        replays=search.replays,
        most_replays=most_replays,
        minimal=not search.exhausted,
    )


class _Search:
    """Tests candidates, each once, and holds the last that failed."""

    held: Failure
    comparison: Comparison
    replies: tuple[Observation, Observation]
    threads: tuple[int, int]

    def __init__(self, target: ScriptedTarget, most_replays: int, stop: Callable[[], bool]) -> None:
        self._target = target
        self._most = most_replays
        self._stop = stop
        self._sound: set[Failure] = set()  # Tested, and nothing moved.
        self._held_plays: dict[Play, PlayResult] = {}  # Of the last candidate: the next one often shares one of them.
        self.replays = 0
        self.exhausted = False

    @property
    def first_moved(self) -> int:
        """See ``reductions.Search``."""
        firsts = (self.comparison.first_token, self.comparison.first_logprob, self.comparison.first_logits)
        return min(first for first in firsts if first is not None)

    def fails(self, candidate: Failure) -> bool:
        """See ``reductions.Search``."""
        if candidate in self._sound:
            return False
        try:
            verdict = self._compared(candidate)
        except _BoundReachedError:
            self.exhausted = True
            return False
        except DetharnessError:  # Refused: a pool that is too small, for example.
            verdict = None
        if verdict is None:
            self._sound.add(candidate)
            return False
        self.held = candidate
        self.replies, self.comparison = verdict
        self.threads = self._threads(candidate.reference), self._threads(candidate.trial)
        return True

    def _compared(self, candidate: Failure) -> tuple[tuple[Observation, Observation], Comparison] | None:
        """Both replies where they differ, and where two others that must not differ do not."""
        self._held_plays = {play: result for play, result in self._held_plays.items() if play in candidate.plays}
        dtype = candidate.trial.play.config.dtype
        replies = self._replies(candidate.reference, candidate.trial)
        comparison = compare(*replies, dtype)
        if not comparison.moved:
            return None
        if candidate.alike is not None and compare(*self._replies(*candidate.alike), dtype).moved:
            return None
        return replies, comparison

    def _replies(self, reference: Side, other: Side) -> tuple[Observation, Observation]:
        completions = [self._played(side.play).completions[side.sample] for side in (reference, other)]
        return aligned_replies(completions[0], completions[1], greedy=other.request.sampling.temperature == 0)

    def _threads(self, side: Side) -> int:
        return self._held_plays[side.play].trace[0].threads

    def _played(self, play: Play) -> PlayResult:
        if play not in self._held_plays:
            if self.replays == self._most or self._stop():
                raise _BoundReachedError
            self.replays += 1
            self._held_plays[play] = self._target.play(play.arrivals, play.config)
        return self._held_plays[play]


class _BoundReachedError(Exception):
    """No more plays are allowed."""
