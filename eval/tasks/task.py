"""What a task module offers, and what its rows become."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from detharness.errors import UsageError
from detharness.eval.data import DataRow
from detharness.records.digests import sha256_bytes, sha256_value

AnswerKind = Literal["integer", "letter", "hle"]
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True)
class Template:
    """A prompt of our own wording. ``{{name}}`` is replaced in one pass: what is filled in is never filled again."""

    id: str
    text: str

    @property
    def digest(self) -> str:
        """SHA-256 of the text."""
        return sha256_bytes(self.text.encode())

    def fill(self, **values: str) -> str:
        """The prompt; KeyError for a placeholder without a value."""
        return re.sub(r"\{\{(\w+)\}\}", lambda match: values[match[1]], self.text)


@dataclass(frozen=True)
class Item:
    """One row as a task reads it, before its prompt is written. image: the data URI as it stood in the row."""

    task_id: str | None
    question: str
    gold: str
    options: tuple[str, ...] | None = None
    permutation: tuple[int, ...] | None = None
    image: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Task:
    """A benchmark. version: raised whenever the same row would be asked or judged otherwise.

    samples: replies to each row, where nothing else is asked for. published: rows by modality of the whole benchmark.
    read: a data row and the shuffle seed to an item; None for a row that is not of this task. packaged: the data file
    that ships with it.
    """

    name: str
    version: int
    answer_kind: AnswerKind
    template: Template
    samples: int
    published: Mapping[str, int]
    read: Callable[[DataRow, int], Item | None]
    packaged: Path | None = None

    def prompt(self, item: Item) -> str:
        """The text that is sent."""
        options = "\n".join(f"{LETTERS[i]}. {text}" for i, text in enumerate(item.options or ()))
        return self.template.fill(question=item.question, options=options)


def columns(row: DataRow, aliases: Sequence[str]) -> list[str]:
    """The columns of the row that bear one of ``aliases``, whatever their case, in the order of ``aliases``.

    UsageError where two names differ in case alone: readers would choose apart.
    """
    found: list[str] = []
    for alias in aliases:
        names = [name for name in row.value if name.casefold() == alias.casefold()]
        if len(names) > 1:
            raise UsageError(f"{row.where}: the columns {', '.join(names)} differ in case alone: leave one")
        found += names
    return found


def pick(row: DataRow, aliases: Sequence[str], what: str) -> Any:
    """The first value that is not null in the columns called ``aliases``, or None; UsageError without such a column."""
    names = columns(row, aliases)
    if not names:
        raise UsageError(f"{row.where}: no column for the {what}: it may be called {', '.join(aliases)}")
    return next((row.value[name] for name in names if row.value[name] is not None), None)


def text_of(value: object, row: DataRow, what: str) -> str:
    """``value`` if it is a text with something in it."""
    if not isinstance(value, str) or not value.strip():
        raise UsageError(f"{row.where}: the {what} must be a text with something in it, not {value!r:.60}")
    return value


def id_of(row: DataRow, aliases: Sequence[str]) -> str | None:
    """The row's id as a text without blanks around it; None where it has none."""
    value = pick(row, aliases, "id") if columns(row, aliases) else None
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise UsageError(f"{row.where}: the id must be a text or a whole number, not {value!r:.60}")
    return str(value).strip() or None


def shuffled(count: int, seed: int, task_id: str) -> tuple[int, ...]:
    """A permutation of ``range(count)``: the order of hashes of (seed, task id, index), so of nothing else."""
    return tuple(sorted(range(count), key=lambda index: sha256_value([seed, task_id, index])))
