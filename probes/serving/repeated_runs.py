"""The study that everyone quotes: many runs of one prompt at temperature 0, and where their replies first part."""

from __future__ import annotations

import re
from typing import Any

from detharness.probes.contexts import shared_length
from detharness.probes.serving.tally import PromptTally

_CHARACTERS = 80
_NEXT_WORD = re.compile(r"\s*\S*")


def repeated_runs(prompt: PromptTally) -> dict[str, Any]:
    """Distinct replies, the commonest, the prefix common to all, and how replies go on behind it, commonest first.

    common_prefix_tokens is None where all are equal. Replies go on alike where the next word is the same; the commonest
    of them is shown.
    """
    counts, texts = prompt.outputs, prompt.texts
    ordered = sorted(counts, key=lambda output: (-counts[output], output))
    shared = min((shared_length(texts[ordered[0]], texts[output]) for output in ordered), default=0)
    continuations: dict[str, dict[str, Any]] = {}
    for output in ordered:
        rest = texts[output][shared:]
        word = _NEXT_WORD.match(rest)
        same = continuations.setdefault(word[0] if word else "", {"count": 0, "text": rest[:_CHARACTERS]})
        same["count"] += counts[output]
    commonest = {"count": counts[ordered[0]], "text": texts[ordered[0]]} if ordered else None
    return {
        "runs": counts.total(),
        "distinct": len(counts),
        "commonest": commonest,
        "common_prefix_tokens": min((at for at in prompt.parts_at.values() if at is not None), default=None),
        "common_prefix_characters": shared,
        "common_text": texts[ordered[0]][max(0, shared - _CHARACTERS) : shared] if ordered else "",
        "continuations": sorted(continuations.values(), key=lambda one: -one["count"]) if len(counts) > 1 else [],
    }
