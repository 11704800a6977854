"""Which part of a reply may be graded: the final channel, never the reasoning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

HARMONY = "harmony"
DEFAULT_THINK_TAGS = ("think", "thinking", "reasoning", "thought", HARMONY)
"""Names of tags that enclose reasoning: <think>, [THINK], ◁think▷; "harmony" stands for its channels."""

_CHANNEL = "<|channel|>"
_FINAL = "<|channel|>final"
_MESSAGE = "<|message|>"
_ENDS = ("<|return|>", "<|end|>", "<|start|>", "<|call|>")


@dataclass(frozen=True)
class Channel:
    """The final channel. text: None where there is none. before: what stood ahead of it in the same field.

    flags: "unclosed_reasoning" where the reply ended inside its reasoning, "empty" where nothing was said.
    """

    text: str | None
    before: str = ""
    flags: frozenset[str] = frozenset()


def final_channel(
    text: str | None, reasoning: str | None, finish_reason: str | None, *, think_tags: Sequence[str]
) -> Channel:
    """The final channel of a reply: what follows the last closing tag.

    An opening tag need not be there, since many chat templates put it in the prompt. One that is never closed means
    that the reply ended inside its reasoning. ``reasoning``, a field of its own, is never searched, however it ended
    (``finish_reason``).
    """
    if text is None or not text.strip():
        return Channel(None, flags=frozenset({"empty"}))
    if HARMONY in think_tags and _CHANNEL in text:
        return _harmony(text)
    opened = closed = -1
    end = 0
    for name in think_tags:
        if name != HARMONY:
            for opening, closing in _forms(name):
                opened = max(opened, text.rfind(opening))
                at = text.rfind(closing)
                if at > closed:
                    closed, end = at, at + len(closing)
    if opened > closed:
        return Channel(None, text, frozenset({"unclosed_reasoning"}))
    rest = text[end:]
    if not rest.strip():
        return Channel(None, text[:end], frozenset({"empty"}))
    return Channel(rest, text[:end])


def _forms(name: str) -> list[tuple[str, str]]:
    """Opening and closing tags of a name, as chat templates write them."""
    names = dict.fromkeys((name, name.lower(), name.upper(), name.capitalize()))
    brackets = (("<", "</", ">"), ("[", "[/", "]"), ("◁", "◁/", "▷"))
    return [(f"{left}{form}{right}", f"{close}{form}{right}") for form in names for left, close, right in brackets]


def _harmony(text: str) -> Channel:
    at = text.rfind(_FINAL)
    start = text.find(_MESSAGE, at) if at >= 0 else -1
    if start < 0 or text.find(_CHANNEL, at + 1, start) >= 0:
        return Channel(None, text, frozenset({"unclosed_reasoning"}))
    rest = text[start + len(_MESSAGE) :]
    stops = [stop for end in _ENDS if (stop := rest.find(end)) >= 0]
    rest = rest[: min(stops)] if stops else rest
    return Channel(rest, text[:at]) if rest.strip() else Channel(None, text[:at], frozenset({"empty"}))
