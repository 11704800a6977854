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
from detharness.records.digests import sha256_value

_FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class LoadedTask:
    """A task with its rows. images: task id -> data URI. facts: what a manifest pins, plain JSON."""

    task: Task
    rows: tuple[TaskRow, ...]
    images: Mapping[str, str]
    facts: dict[str, Any]


@cache
def _tasks() -> Mapping[str, Task]:
    """Name -> the TASK of every module in this folder that has one."""
    modules = (import_module(f"{__package__}.{module.name}") for module in iter_modules([str(_FOLDER)]))
    found = [module.TASK for module in modules if hasattr(module, "TASK")]
    return {task.name: task for task in sorted(found, key=lambda task: task.name)}


def task_names() -> tuple[str, ...]:
    """The tasks there are."""
    return tuple(_tasks())


def load_task(name: str, data: Path | None, *, shuffle_seed: int = 0, limit: int | None = None) -> LoadedTask:
    """Read ``data`` (None: the file that ships with the task) as rows of the task called ``name``.

    limit: the first rows only. UsageError names file and line of a row that does not fit, and of two rows with one id.
    """
    if name not in _tasks():
        raise UsageError(f"unknown task {name!r}: there are {', '.join(_tasks())}")
    task = _tasks()[name]
    if data is None and task.packaged is None:
        raise UsageError(f"the task {name} needs your copy of its data: name it with --data; nothing is downloaded")
    read = read_rows(data or _FOLDER / str(task.packaged))
    pairs = [(row, item) for row in read if (item := task.read(row, shuffle_seed)) is not None]
    if not pairs:
        raise UsageError(f"{data} holds no row of the task {name}")
    if limit is not None:
        pairs = pairs[:limit]
    rows: list[TaskRow] = []
    images: dict[str, str] = {}
    places: dict[str, str] = {}
    for row, item in pairs:
        made = _task_row(task, row, item)
        if made.task_id in places:
            raise UsageError(f"{row.where}: the id {made.task_id!r:.80} stands already in {places[made.task_id]}")
        places[made.task_id] = row.where
        rows.append(made)
        if item.image is not None:
            images[made.task_id] = item.image
    return LoadedTask(task, tuple(rows), images, _facts(task, rows))


def _task_row(task: Task, row: DataRow, item: Item) -> TaskRow:
    digest = sha256_value(row.value)
    content: str | list[dict[str, Any]] = task.prompt(item)
    if item.image is not None:
        content = [{"type": "text", "text": content}, image_part(item.image, row.where)]
    return TaskRow(
        task_id=item.task_id or f"row-{row.line}-{digest[:12]}",
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
    if row.task_id not in images:
        raise UsageError(f"the image of task {row.task_id!r} is not in the run: name the data file with --data")
    return {"type": "image_url", "image_url": {"url": images[row.task_id]}}
