"""From a task's name and a data file to the rows that are asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

from detharness.errors import UsageError
from detharness.eval.data import DataRow, read_rows
from detharness.eval.records import TaskRow
from detharness.eval.tasks.images import image_part
from detharness.eval.tasks.task import Item, Task
from detharness.records.digests import sha256_bytes, sha256_value


@dataclass(frozen=True)
class LoadedTask:
    """A task with its rows. images: task id -> data URI. facts: what a manifest pins, plain JSON."""

    task: Task
    rows: tuple[TaskRow, ...]
    images: Mapping[str, str]
    facts: dict[str, Any]


@cache
def _tasks() -> Mapping[str, Task]:
    """Name -> the TASK of every module of this package that has one."""
    found: dict[str, Task] = {}
    for info in iter_modules(import_module(__package__).__path__):
        task = getattr(import_module(f"{__package__}.{info.name}"), "TASK", None)
        if task is not None and found.setdefault(task.name, task) is not task:
            raise UsageError(f"two modules in {__package__} are the task {task.name}: rename one")
    return dict(sorted(found.items()))


def task_names() -> tuple[str, ...]:
    """The tasks there are."""
    return tuple(_tasks())


def load_task(name: str, data: Path | None, *, shuffle_seed: int = 0, limit: int | None = None) -> LoadedTask:
    """Read ``data`` (None: the file that ships with the task) as rows of the task called ``name``.

    limit: the first rows only. UsageError names file and line of a row that does not fit, or that stands there twice:
    by its id, or, with or without ids, by all that is in it.
    """
    if name not in _tasks():
        raise UsageError(f"unknown task {name!r:.60}: there are {', '.join(_tasks())}")
    task = _tasks()[name]
    path = data or task.packaged
    if path is None:
        raise UsageError(f"the task {name} needs your copy of its data: name it with --data; nothing is downloaded")
    rows: list[TaskRow] = []
    images: dict[str, str] = {}
    places: dict[str, str] = {}
    for position, row in enumerate(read_rows(path), start=1):
        item = task.read(row, shuffle_seed)
        if item is None or len(rows) == limit:
            continue  # Beyond the limit rows are still read: a damaged file is refused whole.
        made = _task_row(task, row, position, item)
        for key, what in ((made.task_id, f"the id {made.task_id!r:.80}"), (made.row_digest, "the same row")):
            if places.setdefault(key, row.where) != row.where:
                raise UsageError(f"{row.where}: {what} stands already in {places[key]}")
        rows.append(made)
        if item.image is not None:
            images[made.task_id] = item.image
    if not rows:
        raise UsageError(f"{path} holds no row of the task {name}")
    return LoadedTask(task, tuple(rows), images, _facts(task, rows))


def _task_row(task: Task, row: DataRow, position: int, item: Item) -> TaskRow:
    digest = sha256_value(row.value)
    content: str | list[dict[str, Any]] = task.prompt(item)
    if item.image is not None:
        content = [{"type": "text", "text": content}, image_part(item.image, row.where)]
    return TaskRow(
        task_id=item.task_id or f"row-{position}-{digest[:12]}",
        line=row.line,
        modality="text" if item.image is None else "image",
        row_digest=digest,
        question=item.question,
        gold=item.gold,
        options=item.options,
        permutation=item.permutation,
        messages=({"role": "user", "content": content},),
        extra=item.extra,
    )


def _facts(task: Task, rows: Sequence[TaskRow]) -> dict[str, Any]:
    counts = {modality: sum(row.modality == modality for row in rows) for modality in ("text", "image")}
    letters = Counter(row.gold for row in rows) if task.answer_kind == "letter" else None
    return {
        "rows_digest": sha256_value(sorted([row.task_id, row.row_digest] for row in rows)),
        "counts": counts,
        "published": dict(task.published),
        "matches_published": counts == dict(task.published),
        "gold_letters": None if letters is None else dict(sorted(letters.items())),
    }


def messages_for(row: TaskRow, images: Mapping[str, str]) -> list[dict[str, Any]]:
    """The messages as they are sent: a recorded image becomes its data URI again; UsageError if it is not there."""
    messages = []
    for message in row.messages:
        content = message["content"]
        if not isinstance(content, str):
            content = [_sent(part, row, images) for part in content]
        messages.append({**message, "content": content})
    return messages


def _sent(part: dict[str, Any], row: TaskRow, images: Mapping[str, str]) -> dict[str, Any]:
    if part["type"] != "image":
        return part
    uri = images.get(row.task_id)
    if uri is None:
        raise UsageError(f"the image of task {row.task_id!r:.80} is not in the run: name the data file with --data")
    if sha256_bytes(uri.encode()) != part["uri_digest"]:
        raise UsageError(f"the image of task {row.task_id!r:.80} is not the one in the run: name its own data file")
    return {"type": "image_url", "image_url": {"url": uri}}
