"""Columns and gold answers of benchmarks whose answer is an integer."""

from __future__ import annotations

import re

from detharness.errors import UsageError
from detharness.eval.data import DataRow
from detharness.eval.tasks.task import Item, id_of, pick, text_of

_IDS = ("id", "problem_idx", "problem_id", "idx", "index")
_QUESTIONS = ("problem", "question", "problem_text", "origin_prompt")
_GOLDS = ("answer", "expected_answer", "gold_answer", "target")
_INTEGER = re.compile(r"[0-9]{1,12}(?:\.0+)?")


def read_integer_row(row: DataRow, shuffle_seed: int) -> Item:
    """A row with a problem and an answer from 0 to 999."""
    question = text_of(pick(row, _QUESTIONS, "problem"), row, "problem")
    return Item(id_of(row, _IDS), question.strip(), _gold(pick(row, _GOLDS, "answer"), row))


def _gold(value: object, row: DataRow) -> str:
    """33, "33", "033", 33.0 and "33.0" are 33."""
    text = str(value).strip() if isinstance(value, str | int | float) and not isinstance(value, bool) else ""
    if not _INTEGER.fullmatch(text) or int(text.split(".")[0]) > 999:
        raise UsageError(f"{row.where}: the answer must be a whole number from 0 to 999, not {value!r:.60}")
    return str(int(text.split(".")[0]))
