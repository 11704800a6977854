"""What a task module offers, and what its rows become."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
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

    samples: how many replies a cell count rests on by default. published: rows by modality of the whole benchmark.
    read: a data row and the shuffle seed to an item; None for a row that is not of this task. packaged: the name of the
    data file that ships with it.
    """

    name: str
    version: int
    answer_kind: AnswerKind
    template: Template
    samples: int
    published: Mapping[str, int]
    read: Callable[[DataRow, int], Item | None]
    packaged: str | None = None

    def prompt(self, item: Item) -> str:
        """The text that is sent."""
        options = "\n".join(f"{LETTERS[i]}. {text}" for i, text in enumerate(item.options or ()))
        return self.template.fill(question=item.question, options=options)


def pick(row: DataRow, aliases: Sequence[str], what: str) -> Any:
    """The value under the first alias that the row has, whatever its case; UsageError where there is none."""
    found = pick_optional(row, aliases)
    if found is None:
        raise UsageError(f"{row.where}: no {what}: it is looked for under {', '.join(aliases)}")
    return found


def pick_optional(row: DataRow, aliases: Sequence[str]) -> Any:
    """The value under the first alias that the row has, or None."""
    names = {name.casefold(): name for name in reversed(row.value)}
    for alias in aliases:
        if alias.casefold() in names:
            return row.value[names[alias.casefold()]]
    return None


def text_of(value: object, row: DataRow, what: str) -> str:
    """``value`` if it is a text with something in it."""
    if not isinstance(value, str) or not value.strip():
        raise UsageError(f"{row.where}: the {what} must be a text with something in it, not {_short(value)}")
    return value


def id_of(row: DataRow, aliases: Sequence[str]) -> str | None:
    """The row's id as a text; None where it has none."""
    value = pick_optional(row, aliases)
    if value is None or value == "":
        return None
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise UsageError(f"{row.where}: the id must be a text or a whole number, not {_short(value)}")
    return str(value)


def shuffled(count: int, seed: int, task_id: str) -> tuple[int, ...]:
    """A permutation of ``range(count)``: the order of hashes of (seed, task id, index), so of nothing else."""
    return tuple(sorted(range(count), key=lambda index: sha256_value([seed, task_id, index])))


def _short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."
