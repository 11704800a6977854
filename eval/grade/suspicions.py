"""What does not fail a run but should be looked at before its number is believed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from detharness.eval.records import Generation, TaskRow
from detharness.records.digests import sha256_value
from detharness.statistics.binomial import binomial_upper_tail

_SKEW_CHANCE = 1e-4  # A benchmark shuffled fairly warns once in 10,000 shuffles.


@dataclass
class Replays:
    """Finds answers of one task that are equal although they were drawn at a temperature under different seeds."""

    _drawn: dict[tuple[str, str], list[Any]] = field(default_factory=dict)
    _lengths: dict[tuple[str, str], int] = field(default_factory=dict)

    def add(self, generation: Generation, output_digest: str) -> None:
        """Enter the answer of one cell."""
        sampling = generation.request.get("sampling")
        temperature = sampling.get("temperature") if isinstance(sampling, dict) else None
        if isinstance(temperature, int | float) and temperature > 0 and generation.output is not None:
            key = generation.task_id, output_digest
            self._drawn.setdefault(key, []).append(generation.request.get("seed"))
            self._lengths[key] = len(generation.output.text or "") + len(generation.output.reasoning or "")

    def warnings(self) -> list[dict[str, Any]]:
        """At most one, with the counts that tell a replay from short answers that are equal by chance."""
        equal = {key: seeds for key, seeds in self._drawn.items() if len(seeds) > 1 and _differ(seeds)}
        if not equal:
            return []
        longest = max(self._lengths[key] for key in equal)
        cells, tasks = sum(map(len, equal.values())), len({task_id for task_id, _ in equal})
        return [
            {
                "code": "replay_suspected",
                "cells": cells,
                "tasks": tasks,
                "longest_characters": longest,
                "sentence": f"{cells} answers of {tasks} tasks are equal to another of their task, though they were "
                f"drawn at a temperature above 0 under different seeds; the longest has {longest} characters. Long "
                "ones mean that a cache replied or that the seed does not reach the sampler",
            }
        ]


def _differ(seeds: Sequence[Any]) -> bool:
    return None in seeds or len(set(map(repr, seeds))) > 1


@dataclass
class Requests:
    """Finds answers that were not asked for under one and the same configuration."""

    _configurations: Counter[str] = field(default_factory=Counter)

    def add(self, generation: Generation) -> None:
        """Enter the request of one cell: all of it but what belongs to the cell."""
        own = ("seed", "messages_digest")
        shared = {name: value for name, value in generation.request.items() if name not in own}
        self._configurations[sha256_value(shared)] += 1

    def warnings(self) -> list[dict[str, Any]]:
        """At most one."""
        if len(self._configurations) < 2:
            return []
        cells = sorted(self._configurations.values(), reverse=True)
        return [
            {
                "code": "mixed_requests",
                "cells": cells,
                "sentence": f"the answers were asked for under {len(cells)} configurations (template, sampling or "
                f"target; {', '.join(map(str, cells))} cells), so the score belongs to none of them",
            }
        ]


def letter_skew(tasks: Sequence[TaskRow]) -> list[dict[str, Any]]:
    """A warning if one letter is the right one more often than a fair shuffle would make it.

    The chance that any letter reaches the highest count is at most the sum over letters of the binomial tails.
    """
    histogram = dict(sorted(Counter(row.gold for row in tasks).items()))
    fewest = min(len(row.options or ()) for row in tasks)
    if fewest < 2:
        return []
    highest = max(histogram.values())
    chance = fewest * binomial_upper_tail(highest, len(tasks), Fraction(1, fewest))
    if chance >= _SKEW_CHANCE:
        return []
    letter = next(letter for letter, count in histogram.items() if count == highest)
    return [
        {
            "code": "gold_letter_skew",
            "histogram": histogram,
            "sentence": f"{letter!r} is the right letter of {highest} of {len(tasks)} tasks: the options were not "
            "shuffled fairly, and a model that always says it would score as much",
        }
    ]
