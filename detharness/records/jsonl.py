"""Append-only JSONL: one writer, whole lines, and a reader whose errors name file and line."""

from __future__ import annotations

import fcntl
import itertools
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from detharness.errors import UsageError
from detharness.records.atomic import sync_folder, write_atomic
from detharness.records.canonical import canonical_bytes, parse_canonical


@dataclass(frozen=True)
class JsonlRow:
    """One object of a JSONL file and the line it stands on (the first line is 1)."""

    line: int
    value: dict[str, Any]


class JsonlWriter:
    """Appends canonical rows to ``path``, held locked against a second writer until closed.

    A line and its newline go out in one write, and to the disk every ``sync_every`` rows and on close; a
    write that fails is taken back. A last line without its newline is what a crash leaves: opening moves it
    to a side file, named in ``torn_tail`` (None if there was none). UsageError when the file is locked or
    cannot be written.
    """

    def __init__(self, path: Path, *, sync_every: int = 64) -> None:
        self.path = path
        self.torn_tail: Path | None = None
        self._sync_every = sync_every
        self._unsynced = 0
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise _cannot_write(path, error) from None
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._size = self._drop_torn_tail()
            sync_folder(path.parent)
        except BlockingIOError:
            os.close(self._descriptor)
            raise UsageError(
                f"{path} is being written by another process: let it end, or choose another --out"
            ) from None
        except OSError as error:
            os.close(self._descriptor)
            raise _cannot_write(path, error) from None

    def _drop_torn_tail(self) -> int:
        content = self.path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            sides = (self.path.with_name(f"{self.path.name}.torn-{number}") for number in itertools.count(1))
            self.torn_tail = next(side for side in sides if not side.exists())
            write_atomic(self.torn_tail, content[whole:])  # Safe on the disk before it is cut off here.
            os.ftruncate(self._descriptor, whole)
        return whole

    def append(self, row: Mapping[str, Any]) -> None:
        """Write one row; the errors of ``canonical_bytes``, or UsageError when the disk refuses it."""
        line = canonical_bytes(dict(row)) + b"\n"
        try:
            written = os.write(self._descriptor, line)
            if written < len(line):
                os.ftruncate(self._descriptor, self._size)
                raise UsageError(f"cannot write {self.path}: the disk took only a part of a line; free some space")
            self._size += written
            self._unsynced += 1
            if self._unsynced >= self._sync_every:
                self._sync()
        except OSError as error:
            raise _cannot_write(self.path, error) from None

    def _sync(self) -> None:
        os.fsync(self._descriptor)
        self._unsynced = 0

    def close(self) -> None:
        """Sync what is left and release the lock."""
        try:
            self._sync()
        finally:
            os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _cannot_write(path: Path, error: OSError) -> UsageError:
    return UsageError(f"cannot write {path}: {error.strerror}")


def read_jsonl(path: Path) -> Iterator[JsonlRow]:
    """Yield the file's objects with their line numbers; blank lines count but are skipped.

    Only a newline ends a line: U+2028 inside a string does not. UsageError names file and line for anything
    ``parse_canonical`` refuses and for a row that is not an object.
    """
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.isspace():
                    continue
                try:
                    value = parse_canonical(line.rstrip(b"\r\n"))
                except ValueError as error:
                    raise UsageError(f"{path}, line {number}: {error}") from None
                if not isinstance(value, dict):
                    raise UsageError(f"{path}, line {number}: each line must be a JSON object")
                yield JsonlRow(number, value)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
