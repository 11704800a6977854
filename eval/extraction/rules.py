"""The verdict of the rules on one reply, and the rules' name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from detharness.errors import UsageError
from detharness.eval.extraction.channel import final_channel
from detharness.eval.extraction.exam import confidence, equals, stated_answer
from detharness.eval.extraction.integers import find_integer
from detharness.eval.extraction.letters import find_letter
from detharness.eval.records import TaskRow
from detharness.records.digests import sha256_value

RULES_VERSION = 1
"""Raised whenever a reply could get another verdict."""

_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_LONGEST_KEPT = 200  # Characters of a free-form answer that a verdict repeats.


@dataclass(frozen=True)
class Extracted:
    """What the rules hold of a reply. extracted: the answer that was judged, None without one.

    flags: "fallback" (a lenient rule's answer), "evaluated" (worked out by one), "out_of_range", "tag_ambiguous" (no
    answer behind the last closing tag, but one before it), "unclosed_reasoning", "answer_in_reasoning" (that holds an
    answer, which does not count), "empty". confidence: percent, HLE alone.
    """

    verdict: Literal["correct", "incorrect", "no_answer", "ambiguous", "needs_judge"]
    extracted: int | str | None = None
    flags: frozenset[str] = frozenset()
    confidence: int | None = None


def judge_reply(
    answer_kind: str,
    row: TaskRow,
    text: str | None,
    reasoning: str | None,
    finish_reason: str | None,
    *,
    mode: str,
    think_tags: Sequence[str],
) -> Extracted:
    """Judge a reply to ``row``. answer_kind: "integer", "letter" or "hle"; mode: "strict" or "lenient".

    Never raises for anything a model may write; UsageError for a task whose answer is not of its kind.
    """
    channel = final_channel(text, reasoning, finish_reason, think_tags=think_tags)
    if channel.text is None:
        found = Extracted("no_answer", flags=channel.flags)
    else:
        found = _judge(answer_kind, row, channel.text, lenient=mode == "lenient")
    if not _answers(found) and channel.before and _answers(_judge(answer_kind, row, channel.before, lenient=False)):
        elsewhere = "answer_in_reasoning" if "unclosed_reasoning" in channel.flags else "tag_ambiguous"
        return replace(found, flags=found.flags | {elsewhere})
    return found


def _answers(found: Extracted) -> bool:
    """Whether the rules saw an answer, right or wrong."""
    return found.verdict != "no_answer" and (found.verdict != "needs_judge" or found.extracted is not None)


def _judge(answer_kind: str, row: TaskRow, text: str, *, lenient: bool) -> Extracted:
    if answer_kind == "integer":
        return _integer(row, text, lenient=lenient)
    if answer_kind == "letter":
        return _letter(row, text, _ALPHABET[: len(row.options or "ABCD")], lenient=lenient)
    return _exam(row, text, lenient=lenient)


def _integer(row: TaskRow, text: str, *, lenient: bool) -> Extracted:
    if not re.fullmatch("[0-9]{1,18}", row.gold):
        raise UsageError(f"the task {row.task_id!r:.80} has no whole number for an answer, but {row.gold!r:.60}")
    found = find_integer(text, lenient=lenient)
    if found.state == "none":
        return Extracted("no_answer")
    if found.state == "several":
        return Extracted("ambiguous", flags=found.flags)
    if found.state == "other":
        return Extracted("incorrect", flags=found.flags)
    value = found.value
    in_range = isinstance(value, int) and 0 <= value <= 999
    flags = found.flags if in_range else found.flags | {"out_of_range"}
    return Extracted("correct" if in_range and value == int(row.gold) else "incorrect", value, flags)


def _letter(row: TaskRow, text: str, letters: str, *, lenient: bool) -> Extracted:
    found = find_letter(text, letters, row.options, lenient=lenient)
    if found is None:
        return Extracted("no_answer")
    flags = frozenset({"fallback"}) if found.lenient else frozenset()
    if found.letter is None:
        return Extracted("ambiguous", flags=flags)
    return Extracted("correct" if found.letter == row.gold.strip().upper() else "incorrect", found.letter, flags)


def _exam(row: TaskRow, text: str, *, lenient: bool) -> Extracted:
    sure = confidence(text)
    if row.extra.get("answer_type") == "multipleChoice":
        found = _letter(row, text, _ALPHABET, lenient=lenient)
        return Extracted(found.verdict, found.extracted, found.flags, sure)
    answer = stated_answer(text)
    if answer is None:
        return Extracted("needs_judge", confidence=sure)
    return Extracted("correct" if equals(answer, row.gold) else "needs_judge", answer[:_LONGEST_KEPT], confidence=sure)


def rules_fingerprint(mode: str, think_tags: Sequence[str]) -> dict[str, Any]:
    """What the rules are, plain JSON: version, mode, tags, and a digest over them."""
    named = {"version": RULES_VERSION, "mode": mode, "think_tags": list(think_tags)}
    return {**named, "digest": sha256_value(named)}
