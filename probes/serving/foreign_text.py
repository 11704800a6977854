"""Foreign text: load that shares nothing with a probed prompt, of any length, fixed by a seed and a label."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from functools import cache
from importlib import resources

from detharness.records.jsonl import read_jsonl

SHORTEST, LONGEST = 4, 600
"""Words of a text: about 10 to 800 tokens."""


class ForeignText:
    """Draws texts from a generator of its own: the same seed and label draw the same ones.

    avoid: texts whose first words no drawn one begins with, so that no prefix is shared with them.
    """

    def __init__(self, seed: int, label: str, avoid: Sequence[str]) -> None:
        self.random = random.Random(f"{seed}/{label}")
        self._words = _words()
        taken = {text.split(maxsplit=1)[0].lower() for text in avoid if text.strip()}
        self._firsts = [kind for kind in self._words["kinds"] if kind not in taken]

    def ragged(self, count: int) -> list[str]:
        """``count`` texts whose lengths spread from short to long; among two or more, the shortest and the longest."""
        spread = math.log(LONGEST / SHORTEST)
        lengths = [round(SHORTEST * math.exp(spread * self.random.random())) for _ in range(count)]
        if count > 1:
            lengths[:2] = SHORTEST, LONGEST
        self.random.shuffle(lengths)
        return [self.text(length) for length in lengths]

    def text(self, words: int) -> str:
        """One text of at least ``words`` words, a question at its end."""
        choice = self.random.choice
        names, deeds, kinds = (self._words[kind] for kind in ("names", "deeds", "kinds"))
        parts = [f"{choice(self._firsts).capitalize()} {choice(names)}:"]
        count = 5
        while count < words:
            parts.append(f"The {choice(kinds)} {choice(names)} {choice(deeds)} the {choice(names)}.")
            count += 6
        return " ".join([*parts, "What comes next?"])


@cache
def _words() -> dict[str, list[str]]:
    with resources.as_file(resources.files("detharness.probes") / "prompts" / "foreign_words.jsonl") as path:
        return next(read_jsonl(path)).value
