"""The 2,158 questions of Humanity's Last Exam that have no image."""

from __future__ import annotations

from detharness.eval.data import DataRow
from detharness.eval.tasks.hle import TEMPLATE, read_exam_row
from detharness.eval.tasks.task import Item, Task


def _read_text_row(row: DataRow, shuffle_seed: int) -> Item | None:
    item = read_exam_row(row, shuffle_seed)
    return None if item.image is not None else item


TASK = Task(
    name="hle-text",
    version=1,
    answer_kind="hle",
    template=TEMPLATE,
    samples=1,
    published={"text": 2158, "image": 0},
    read=_read_text_row,
)
