"""Answers that are the letter of an option."""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from detharness.eval.extraction.boxes import boxes
from detharness.eval.extraction.markers import markers
from detharness.eval.extraction.spelling import unwrapped

_OPEN, _CLOSE = r"[\s*_`\"'\u2018\u201c(\[{$<]*+", r"[\s*_`\"'\u2019\u201d)\]}$>]*+"
# A letter by itself: no word, no formula (C=O, C(CH3), C-14, C+), no name (D'Alembert, A.C.).
_ALONE = r"(?!\w|['\u2019]\w|[-\u2010-\u2013^+(\[{]\S|\.[A-Za-z]\b|\\[A-Za-z])(?!\s*[=<>^\u2248\u00b7\u00d7\u00b1])"
_LETTER = re.compile(rf"{_OPEN}(?:(?:option|choice)\b\s?)?{_OPEN}([A-Za-z]){_ALONE}", re.IGNORECASE)
_ANOTHER = re.compile(rf"{_CLOSE}(,|/|&|;|\+|or\b|and\b|)\s*(?:(?:or|and)\s)?{_OPEN}([A-Za-z]){_ALONE}")
_LABELLED = re.compile(r"[*_`\"'\u2019\u201d}$\s]*+(?:\Z|[)\].:]|-\s)")
_END = re.compile(r"[\s.*_`\"'\u2019\u201d)\]}$>]*\Z")
_WORD = re.compile(r"\s+(?!or\b|and\b)[a-z]")
_WORDS = re.compile(r"[\s*_\"'(]*(?:(?!option|choice)[A-Za-z]{2}|\Z)", re.IGNORECASE)
_LATER = re.compile(r"\(([A-Za-z])\)|\b(?:option|choice)\s([A-Z])\b", re.IGNORECASE)
_LONGEST = 400


@dataclass(frozen=True)
class Choice:
    """letter: in upper case; None where several stand in one place. lenient: the strict rules do not see it."""

    position: int
    letter: str | None
    lenient: bool = False


def find_letter(text: str, letters: str, options: Sequence[str] | None, *, lenient: bool) -> Choice | None:
    """The last valid choice in a final channel, by position; ``letters`` are those there are.

    Lenient: where there is none, the last marker line that holds the text of an option, "(C)" or "option C".
    """
    if len(text) <= _LONGEST and (lone := _read(text, letters)) and _END.match(lone.rest):
        return Choice(0, lone.letter)
    choice = next(
        heapq.merge(_marked(text, letters), _boxed(text, letters), key=lambda choice: choice.position, reverse=True),
        None,
    )
    if choice is None and lenient:
        choice = next(_lenient(text, letters, options), None)
    return choice


def _marked(text: str, letters: str) -> Iterator[Choice]:
    for marker in markers(text):
        line = marker.line[:_LONGEST]
        read = _read(line.partition("</")[0] if marker.tag else line, letters)
        if read is not None:
            yield Choice(marker.position, read.letter)


def _boxed(text: str, letters: str) -> Iterator[Choice]:
    """The letters of boxes that hold one alone, or with a label's delimiter and its option: "C", "(C)", "C: larger"."""
    for box in boxes(text):
        read = _read((box.content or "")[:_LONGEST], letters)
        if read is not None and (read.letter is None or _LABELLED.match(read.rest)):
            yield Choice(box.start, read.letter)


@dataclass(frozen=True)
class _Read:
    """What a text begins with: a letter, None for several; and the ``rest`` behind the first."""

    letter: str | None
    rest: str


def _read(text: str, letters: str) -> _Read | None:
    if _WORDS.match(text):
        return None  # Most lines are prose: they need not be unwrapped.
    text = unwrapped(text)
    found = _LETTER.match(text)
    if found is None or found[1].upper() not in letters or _is_word(found[1], text[found.end() :]):
        return None
    rest = text[found.end() :]
    return _Read(None if _several(found[1].upper(), rest, letters) else found[1].upper(), rest)


def _is_word(letter: str, rest: str) -> bool:
    """The article "a", the pronoun "I"."""
    return letter in ("a", "i", "I") and re.match(r"\s+[A-Za-z]", rest) is not None


def _several(first: str, rest: str, letters: str) -> bool:
    another = _ANOTHER.match(rest)
    if another is None or another[2].upper() not in letters or another[2].upper() == first:
        return False
    behind = rest[another.end() :]
    if another[1] == "":  # "A B" and nothing more; a sentence may follow a letter otherwise.
        return another[2].isupper() and _END.match(behind) is not None
    if another[1] in (",", ";"):
        return _WORD.match(behind) is None  # "C, A is wrong" states one.
    return not _is_word(another[2], behind)


def _lenient(text: str, letters: str, options: Sequence[str] | None) -> Iterator[Choice]:
    texts = [_folded(option) for option in options or ()]
    for marker in markers(text):
        line = _folded(marker.line[:_LONGEST])
        said = {(one or other).upper() for one, other in _LATER.findall(line)} & set(letters)
        if texts.count(line) == 1:
            yield Choice(marker.position, letters[texts.index(line)], lenient=True)
        elif said:
            yield Choice(marker.position, said.pop() if len(said) == 1 else None, lenient=True)


def _folded(text: str) -> str:
    return unwrapped(text).strip(" .*_`")
