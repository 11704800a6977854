"""Reading a data file by what is in it, not by its name."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detharness.errors import UsageError
from detharness.records.canonical import canonical_bytes, parse_json

_COMPRESSED = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"PK\x03\x04": "zip",
}
_PARQUET = b"PAR1"
_MARK = b"\xef\xbb\xbf"
_SEPARATORS = ",;\t"
_LONGEST_FIELD = 1 << 27  # An image as a data URI is one field; the library's own limit is 128 KiB.


@dataclass(frozen=True)
class DataRow:
    """One row. ``where`` is its place for messages; ``line`` its first line, or its number from 1 where it has none."""

    line: int
    where: str
    value: dict[str, Any]


def read_rows(path: Path) -> list[DataRow]:
    """Every row of ``path``, in order; at least one.

    UsageError in one sentence, with file and line, for what cannot be read or what two readers could read apart:
    invalid UTF-8, duplicate keys, NaN, lone surrogates, integers beyond 64 bits, rows that are no object, a CSV row
    with too few or too many fields.
    """
    rows = list(_rows(path))
    if not rows:
        raise UsageError(f"{path} holds no row: give a file with one task a row")
    return rows


def _rows(path: Path) -> Iterator[DataRow]:
    if path.is_dir():
        return _table(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    for start, name in _COMPRESSED.items():
        if data.startswith(start):
            raise UsageError(f"{path} is compressed ({name}): unpack it first")
    if data.startswith(_PARQUET):
        return _table(path)
    data = data.removeprefix(_MARK)
    first = data.lstrip()[:1]
    if first == b"[":
        return _json_array(path, data)
    if first in (b"{", b""):
        return _json_lines(path, data)
    return _csv(path, data)


def _json_array(path: Path, data: bytes) -> Iterator[DataRow]:
    for number, value in enumerate(_parsed(data, str(path)), start=1):
        yield _row(value, number, f"{path}, item {number}")


def _json_lines(path: Path, data: bytes) -> Iterator[DataRow]:
    # Only a newline ends a line: U+2028 and its like may stand inside a string.
    for number, line in enumerate(io.BytesIO(data), start=1):
        where = f"{path}, line {number}"
        if not line.isspace():
            yield _row(_parsed(line, where), number, where)


def _csv(path: Path, data: bytes) -> Iterator[DataRow]:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{path} is no JSON and no UTF-8 text (byte {error.start}): give JSONL, JSON, CSV or Parquet"
        ) from None
    csv.field_size_limit(_LONGEST_FIELD)
    stream = io.StringIO(text, newline="")  # Newlines as they stand: inside quotes they are content.
    separator = max(_SEPARATORS, key=stream.readline().count)
    stream.seek(0)
    reader = csv.reader(stream, delimiter=separator, strict=True)
    line = 1
    try:
        header = next(reader)
        if len(header) < 2 or len(set(header)) < len(header):
            raise UsageError(f"{path} is no JSON, and its first line is no CSV header with names of their own")
        while True:
            line = reader.line_num + 1  # A quoted field may hold newlines: a row is named by its first line.
            fields = next(reader, None)
            if fields is None:
                return
            if len(fields) not in (0, len(header)):
                raise UsageError(f"{path}, line {line}: {len(fields)} fields under {len(header)} column names")
            if fields:
                yield DataRow(line, f"{path}, line {line}", dict(zip(header, fields, strict=True)))
    except csv.Error as error:
        raise UsageError(f"{path}, line {line}: {error}") from None


def _table(path: Path) -> Iterator[DataRow]:
    """Rows of a Parquet file or a ``save_to_disk`` folder; columns of images as the library holds them are left out."""
    try:
        import datasets
        import pyarrow.parquet
    except ImportError:
        raise UsageError(
            f"{path} needs the package datasets: pip install 'detharness[data]', or export the rows as JSONL"
        ) from None
    try:
        if path.is_dir():
            table = datasets.load_from_disk(str(path))
        else:  # Read here: Dataset.from_parquet would leave a copy in the user's cache.
            table = datasets.Dataset(pyarrow.parquet.read_table(path))
    except Exception as error:  # The library raises whatever it stumbles over.
        raise UsageError(f"{path} cannot be read as a table: {_phrase(error)}") from None
    if not isinstance(table, datasets.Dataset):
        if len(table) != 1:
            raise UsageError(f"{path} holds several splits ({', '.join(table)}): name the folder of one")
        (table,) = table.values()
    schema = table.data.schema  # By their type, which stands there even where the file no longer says "image".
    images = [name for name in table.column_names if schema.field(name).type == datasets.Image.pa_type]
    for number, value in enumerate(table.remove_columns(images), start=1):
        yield _row(value, number, f"{path}, row {number}")


def _parsed(data: bytes, where: str) -> Any:
    try:
        return parse_json(data)
    except ValueError as error:
        raise UsageError(f"{where}: {_phrase(error)}") from None


def _row(value: object, number: int, where: str) -> DataRow:
    if not isinstance(value, dict):
        raise UsageError(f"{where}: each row must be a JSON object")
    try:
        canonical_bytes(value)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{where}: {_phrase(error)}") from None
    return DataRow(number, where, value)


def _phrase(error: Exception) -> str:
    """What is wrong, on one line and short: libraries quote the whole value, which may be an image."""
    lines = str(error).splitlines() or [type(error).__name__]
    return lines[0] if len(lines[0]) <= 200 else lines[0][:150] + " ... " + lines[0][-45:]
