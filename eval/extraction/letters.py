"""Answers that are the letter of an option."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from detharness.eval.extraction.boxes import boxes
from detharness.eval.extraction.markers import marked
from detharness.eval.extraction.spelling import unwrapped

_OPEN, _CLOSE = r"[\s*_`\"'(\[{$<]{0,16}", r"[*_`\"')\]}$>]{0,16}"
_HEAD = re.compile(rf"{_OPEN}(?:(?:option|choice)\s{{1,4}})?{_OPEN}([A-Za-z])(?![A-Za-z0-9'\u2019^_-])", re.IGNORECASE)
_MORE = re.compile(
    rf"{_CLOSE}\s{{0,4}}(?:,|/|&|\+|\bor\b|\band\b)\s{{0,4}}(?:or\s|and\s)?{_OPEN}([A-Z])(?![A-Za-z0-9'\u2019^-])"
)
_TAG = re.compile(r"<answer>\s{0,20}([^<]{1,200})</answer>", re.IGNORECASE)
_JSON = re.compile(r"\"answer\"\s{0,8}:\s{0,8}\"([^\"\n]{1,200})\"", re.IGNORECASE)
_LATER = re.compile(r"\(([A-Z])\)|\b(?:option|choice)\s{1,4}([A-Z])\b", re.IGNORECASE)
_LONE = re.compile(rf"{_OPEN}([A-Za-z]){_CLOSE}[.\s]*")
_SENTENCE = re.compile(r"[.!?;](?:\s|$)")
_PRONOUN = re.compile(r"\s+[A-Za-z]")
_LONGEST = 400


@dataclass(frozen=True)
class Choice:
    """letter: in upper case; None where several stand after one marker. lenient: the strict rules do not see it."""

    position: int
    letter: str | None
    lenient: bool = False


def find_letter(text: str, letters: str, options: Sequence[str] | None, *, lenient: bool) -> Choice | None:
    """The last valid choice in a final channel, by position; ``letters`` are those there are."""
    lone = _LONE.fullmatch(text) if len(text) < _LONGEST else None
    if lone and lone[1].upper() in letters:
        return Choice(0, lone[1].upper())
    found = [next(candidates, None) for candidates in _candidates(text, letters, options, lenient=lenient)]
    return max((choice for choice in found if choice), key=lambda choice: choice.position, default=None)


def _candidates(
    text: str, letters: str, options: Sequence[str] | None, *, lenient: bool
) -> tuple[Iterator[Choice], ...]:
    """Per way of saying it, its choices from the last to the first."""
    return (
        (choice for at, line in marked(text) if (choice := _of_line(at, line, letters, options, lenient=lenient))),
        (Choice(at, letter) for at, content in boxes(text) if (letter := _of_box(content, letters))),
        *(
            (
                Choice(match.start(1), letter)
                for match in reversed(list(pattern.finditer(text)))
                if (letter := _of_box(match[1], letters))
            )
            for pattern, sign in ((_TAG, "</answer>"), (_JSON, '"answer"'))
            if sign in text.lower()
        ),
    )


def _of_box(content: str, letters: str) -> str | None:
    """The letter of a box that holds nothing else, or it and its option: "C", "(C)", "C: the larger one"."""
    body = unwrapped(content[:_LONGEST])
    match = re.match(rf"{_OPEN}(?:option\s{{1,4}})?([A-Za-z]){_CLOSE}\s*(?:$|[.:)-]\s|[.:)]$|[.:)](?=\S))", body, re.I)
    return match[1].upper() if match and match[1].upper() in letters else None


def _of_line(at: int, line: str, letters: str, options: Sequence[str] | None, *, lenient: bool) -> Choice | None:
    body = unwrapped(line[:_LONGEST])
    match = _HEAD.match(body)
    if match and match[1].upper() in letters:
        word_follows = _PRONOUN.match(body, match.end())
        if not (word_follows and match[1] in ("a", "I", "i")):
            stop = _SENTENCE.search(body, match.end())
            more = _MORE.match(body, match.end(), stop.start() if stop else len(body))
            several = more is not None and more[1] in letters and more[1] != match[1].upper()
            return Choice(at, None if several else match[1].upper())
    if not lenient:
        return None
    shown = body.strip(" .*_`")
    if options is not None and list(options).count(shown) == 1:
        return Choice(at, letters[list(options).index(shown)], lenient=True)
    later = [(one or other).upper() for one, other in _LATER.findall(body)]
    valid = [letter for letter in later if letter in letters]
    return Choice(at, valid[0], lenient=True) if len(set(valid)) == 1 else None
