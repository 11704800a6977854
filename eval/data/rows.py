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


@dataclass(frozen=True)
class DataRow:
    """One row: ``line`` for records (of a JSON array or a table: its number from 1), ``where`` for messages."""

    line: int
    where: str
    value: dict[str, Any]


def read_rows(path: Path) -> list[DataRow]:
    """Every row of ``path``, in order.

    UsageError in one sentence, with file and line, for what cannot be read or what two readers could read apart:
    invalid UTF-8, duplicate keys, NaN, lone surrogates, rows that are no object, a CSV row with too few or many fields.
    """
    if path.is_dir():
        return list(_from_datasets(path))
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    for start, name in _COMPRESSED.items():
        if data.startswith(start):
            raise UsageError(f"{path} is compressed ({name}): unpack it first")
    if data.startswith(_PARQUET):
        return list(_from_datasets(path))
    data = data.removeprefix(_MARK)
    first = data.lstrip()[:1]
    rows = list(_json_array(path, data) if first == b"[" else _lines(path, data) if first == b"{" else _csv(path, data))
    if not rows:
        raise UsageError(f"{path} holds no row: give a file with one task a row")
    return rows


def _json_array(path: Path, data: bytes) -> Iterator[DataRow]:
    try:
        values = parse_json(data)
    except ValueError as error:
        raise UsageError(f"{path}: {error}") from None
    for number, value in enumerate(values, start=1):
        yield _row(value, number, f"{path}, item {number}")


def _lines(path: Path, data: bytes) -> Iterator[DataRow]:
    # Only a newline ends a line: U+2028 and its like may stand inside a string.
    for number, line in enumerate(data.split(b"\n"), start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            value = parse_json(line.rstrip(b"\r"))
        except ValueError as error:
            raise UsageError(f"{where}: {error}") from None
        yield _row(value, number, where)


def _csv(path: Path, data: bytes) -> Iterator[DataRow]:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{path} is no JSON and no UTF-8 text (byte {error.start}): give JSONL, JSON, CSV or Parquet"
        ) from None
    csv.field_size_limit(1 << 27)  # An image as a data URI is one field.
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = next(reader, [])
        if len(header) < 2 or len(set(header)) < len(header):
            raise UsageError(f"{path} is no JSON, and its first line is no CSV header with names of their own")
        for fields in reader:
            if not fields:
                continue
            where = f"{path}, line {reader.line_num}"
            if len(fields) != len(header):
                raise UsageError(f"{where}: {len(fields)} fields under {len(header)} column names")
            yield DataRow(reader.line_num, where, dict(zip(header, fields, strict=True)))
    except csv.Error as error:
        raise UsageError(f"{path}, line {reader.line_num}: {error}") from None


def _from_datasets(path: Path) -> Iterator[DataRow]:
    """Rows of a Parquet file or a ``save_to_disk`` folder; columns that hold decoded images are left out."""
    try:
        import datasets
    except ImportError:
        raise UsageError(
            f"{path} needs the package datasets: pip install 'detharness[data]', or export the rows as JSONL"
        ) from None
    try:
        if path.is_dir():
            table = datasets.load_from_disk(str(path))
        else:
            table = datasets.Dataset.from_parquet(str(path), cache_dir=None, keep_in_memory=True)
    except Exception as error:  # The library raises whatever it stumbles over.
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UsageError(f"{path} cannot be read as a table: {reason}") from None
    if not isinstance(table, datasets.Dataset):
        raise UsageError(f"{path} holds several splits ({', '.join(table)}): name the folder of one")
    images = [name for name, feature in table.features.items() if isinstance(feature, datasets.Image)]
    for number, value in enumerate(table.remove_columns(images), start=1):
        yield _row(dict(value), number, f"{path}, row {number}")


def _row(value: object, number: int, where: str) -> DataRow:
    if not isinstance(value, dict):
        raise UsageError(f"{where}: each row must be a JSON object")
    try:
        canonical_bytes(value)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{where}: {error}") from None
    return DataRow(number, where, value)
