"""From bytes of a run's JSONL files to its rows, strictly: a field that is missing or of another type is refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from detharness.errors import UsageError
from detharness.eval.records import SCHEMA, Generation, Output, TaskRow
from detharness.records.canonical import parse_json

# How a generation row starts. A quote inside a JSON string is escaped, so these bytes never stand inside a text.
_ROW_START = re.compile(rb'\{"(?:attempt|schema)"[ \t]*:')


@dataclass(frozen=True)
class Piece:
    """A part of a line: ``value`` is its object, None where it cannot be read and ``problem`` says why.

    start: bytes from the start of the line. length: bytes.
    """

    start: int
    length: int
    value: dict[str, Any] | None
    problem: str | None


def pieces_of(line: bytes) -> list[Piece]:
    """The objects in ``line``: one, unless a crash or an editor joined rows or tore them.

    Rows that stand whole in a damaged line are recovered, what lies between them comes back unread. UsageError
    (a phrase, to be completed by the caller) for JSON that is no object.
    """
    whole = _piece(line, 0, len(line))
    if whole.problem is None:
        return [whole]
    starts = sorted({0, *(match.start() for match in _ROW_START.finditer(line))})
    return [_piece(line, start, end) for start, end in zip(starts, [*starts[1:], len(line)], strict=True)]


def _piece(line: bytes, start: int, end: int) -> Piece:
    part = line[start:end]
    try:
        value = parse_json(part)
    except ValueError as error:
        return Piece(start, len(part), None, str(error))
    if not isinstance(value, dict):
        raise UsageError("each line must be a JSON object")
    return Piece(start, len(part), value, None)


def generation_of(row: Mapping[str, Any], where: str) -> Generation:
    """The generation that ``row`` is; UsageError names ``where`` and the field that does not fit."""
    if row.get("schema") != SCHEMA:
        raise UsageError(f"{where}: the field 'schema' must be {SCHEMA!r}: this row was not written by eval generate")
    read = _Fields(row, where)
    status = read("status", "'ok' or 'error'", lambda value: value in ("ok", "error"))
    output = read("output", "an object or null", _is_object_or_none)
    error = read("error", "an object or null", _is_object_or_none)
    if (status == "ok") != (output is not None) or (status == "error") != (error is not None):
        raise UsageError(f"{where}: a row has an output when its status is ok, and an error when it is error")
    return Generation(
        task=read("task", "a text", _is_text),
        task_id=read("task_id", "a text", _is_text),
        sample_index=read("sample_index", "a whole number from 0", _is_count),
        attempt=read("attempt", "a whole number from 0", _is_count),
        modality=read("modality", "'text' or 'image'", lambda value: value in ("text", "image")),
        row_digest=read("row_digest", "a text", _is_text),
        request=read("request", "an object", _is_object),
        status=status,
        output=None if output is None else _output_of(_Fields(output, where, "output.")),
        error=error,
        batch=read("batch", "null, or an object with min, max and mean", _is_batch_or_none),
        session=read("session", "a whole number from 0", _is_count),
        seconds=read("seconds", "a number", _is_number),
    )


def _output_of(read: _Fields) -> Output:
    token_ids = read("token_ids", "a list of whole numbers or null", _is_ids_or_none)
    return Output(
        text=read("text", "a text or null", _is_text_or_none),
        reasoning=read("reasoning", "a text or null", _is_text_or_none),
        token_ids=None if token_ids is None else tuple(token_ids),
        finish_reason=read("finish_reason", "a text or null", _is_text_or_none),
        prompt_tokens=read("prompt_tokens", "a whole number from 0, or null", _is_count_or_none),
        completion_tokens=read("completion_tokens", "a whole number from 0, or null", _is_count_or_none),
        logprob_bits_digest=read("logprob_bits_digest", "a text or null", _is_text_or_none),
    )


def task_row_of(row: Mapping[str, Any], where: str) -> TaskRow:
    """The task that ``row`` of tasks.jsonl is; UsageError names ``where`` and the field that does not fit."""
    read = _Fields(row, where)
    options = read("options", "a list of texts or null", lambda value: value is None or _is_list(value, _is_text))
    permutation = read("permutation", "a list of whole numbers or null", _is_ids_or_none)
    return TaskRow(
        task_id=read("task_id", "a text", _is_text),
        line=read("line", "a whole number from 0", _is_count),
        modality=read("modality", "'text' or 'image'", lambda value: value in ("text", "image")),
        row_digest=read("row_digest", "a text", _is_text),
        question=read("question", "a text", _is_text),
        gold=read("gold", "a text", _is_text),
        options=None if options is None else tuple(options),
        permutation=None if permutation is None else tuple(permutation),
        messages=tuple(read("messages", "a list of objects", lambda value: _is_list(value, _is_object))),
        extra=read("extra", "an object", _is_object),
    )


class _Fields:
    """Reads the fields of one row."""

    def __init__(self, row: Mapping[str, Any], where: str, prefix: str = "") -> None:
        self._row = row
        self._where = where
        self._prefix = prefix

    def __call__(self, name: str, form: str, fits: Callable[[Any], bool]) -> Any:
        if name not in self._row:
            raise UsageError(f"{self._where}: the field '{self._prefix}{name}' is missing")
        value = self._row[name]
        if not fits(value):
            raise UsageError(f"{self._where}: the field '{self._prefix}{name}' must be {form}")
        return value


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_text_or_none(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _is_object_or_none(value: Any) -> bool:
    return value is None or isinstance(value, dict)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _is_count_or_none(value: Any) -> bool:
    return value is None or _is_count(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_batch_or_none(value: Any) -> bool:
    return value is None or (
        isinstance(value, dict) and all(_is_number(value.get(it)) for it in ("min", "max", "mean"))
    )


def _is_list(value: Any, fits: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and all(fits(item) for item in value)


def _is_ids_or_none(value: Any) -> bool:
    """A list of whole numbers, or None; by its types and extremes, since a reply may hold tens of thousands."""
    if not isinstance(value, list):
        return value is None
    return not value or (set(map(type, value)) == {int} and min(value) >= 0 and max(value) < 2**63)


def lines_of(data: Iterator[bytes]) -> Iterator[tuple[int, int, bytes]]:
    """(line number from 1, offset in bytes, content without its newline) of every line that is not blank."""
    offset = 0
    for number, line in enumerate(data, start=1):
        if not line.isspace():
            yield number, offset, line.rstrip(b"\r\n")
        offset += len(line)
