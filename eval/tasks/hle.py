"""Humanity's Last Exam: 2,500 questions, 342 of them with an image."""

from __future__ import annotations

from detharness.errors import UsageError
from detharness.eval.data import DataRow
from detharness.eval.tasks.task import Item, Task, Template, id_of, pick, text_of

TEMPLATE = Template(
    "hle/1",
    "{{question}}\n\nEnd your reply with two lines of the form\nAnswer: your final answer\n"
    "Confidence: how sure you are, from 0% to 100%",
)


def read_exam_row(row: DataRow, shuffle_seed: int) -> Item:
    """A row of the published columns. It is an image row if, and only if, ``image`` is a text that is not empty.

    Options of a multiple-choice item stand in its question. The answer stays a text.
    """
    kind = pick(row, ("answer_type",), "answer type")
    if kind not in ("exactMatch", "multipleChoice"):
        raise UsageError(f"{row.where}: answer_type must be exactMatch or multipleChoice, not {kind!r:.60}")
    # Without the column nobody could tell which questions need an image, so it may be empty but not absent.
    image = pick(row, ("image",), "image")
    if image is not None and not isinstance(image, str):
        raise UsageError(f"{row.where}: image must be a data URI or an empty text, not {image!r:.60}")
    return Item(
        task_id=id_of(row, ("id",)),
        question=text_of(pick(row, ("question",), "question"), row, "question").strip(),
        gold=text_of(pick(row, ("answer",), "answer"), row, "answer").strip(),
        image=image or None,
        extra={"answer_type": kind},
    )


TASK = Task(
    name="hle",
    version=1,
    answer_kind="hle",
    template=TEMPLATE,
    samples=1,
    published={"text": 2158, "image": 342},
    read=read_exam_row,
)
