"""Which part of a reply may be graded: the final channel, never the reasoning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from detharness.errors import UsageError

HARMONY = "harmony"
DEFAULT_THINK_TAGS = ("think", "thinking", "reasoning", "thought", HARMONY)
"""Names of tags that enclose reasoning: <think>, [THINK], ◁think▷; "harmony" stands for its channels."""

_BRACKETS = (("<", ">"), ("[", "]"), ("\u25c1", "\u25b7"))
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
    openings, closings = _tags(tuple(think_tags))
    closed, end = _last(text, closings, -1)
    if _last(text, openings, closed)[0] >= 0:
        return Channel(None, text, frozenset({"unclosed_reasoning"}))
    rest = text[end:]
    if not rest.strip():
        return Channel(None, text[:end], frozenset({"empty"}))
    return Channel(rest, text[:end])


@cache
def _tags(names: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Opening and closing tags of the names, as chat templates write them."""
    bare = [name.strip("<>[]\u25c1\u25b7/") for name in names if name != HARMONY]
    if not all(bare):
        raise UsageError("a think tag needs a name, such as think for <think> ... </think>")
    forms = [
        (left, form, right)
        for name in bare
        for form in dict.fromkeys((name, name.lower(), name.upper(), name.capitalize()))
        for left, right in _BRACKETS
        if left != "[" or form.isupper()  # [Reasoning] is a heading in prose.
    ]
    return tuple(map("".join, forms)), tuple(f"{left}/{form}{right}" for left, form, right in forms)


def _last(text: str, tags: tuple[str, ...], floor: int) -> tuple[int, int]:
    """(start, end) of the last of ``tags`` behind ``floor``; (-1, 0) where there is none."""
    found, end = -1, 0
    for start in dict.fromkeys(tag[: 2 if tag[1] == "/" else 1] for tag in tags):
        at = text.rfind(start, floor + 1)
        while at >= 0:
            if text.startswith(tags, at):
                length = max(len(tag) for tag in tags if text.startswith(tag, at))
                found = floor = at
                end = at + length
                break
            at = text.rfind(start, floor + 1, at)
    return found, end


def _harmony(text: str) -> Channel:
    at = text.rfind(_FINAL)
    start = text.find(_MESSAGE, at) if at >= 0 else -1
    if start < 0 or text.find(_CHANNEL, at + 1, start) >= 0:
        return Channel(None, text, frozenset({"unclosed_reasoning"}))
    rest = text[start + len(_MESSAGE) :]
    stops = [stop for end in _ENDS if (stop := rest.find(end)) >= 0]
    rest = rest[: min(stops)] if stops else rest
    return Channel(rest, text[:at]) if rest.strip() else Channel(None, text[:at], frozenset({"empty"}))
