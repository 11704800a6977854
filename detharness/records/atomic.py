"""Whole files or nothing: a reader never sees half of one, not even after a power cut."""

from __future__ import annotations

import os
from pathlib import Path

from detharness.errors import UsageError


def check_writable(path: Path, option: str) -> None:
    """Refuse with a UsageError that names ``option`` a file that ``write_atomic`` could not write; leaves no trace."""
    try:
        if path.exists() and not path.is_file():
            raise UsageError(f"{option} {path} is not a regular file: name one that is new or may be replaced")
        partial = _partial(path)
        partial.touch()
        partial.unlink()
    except OSError as error:
        raise UsageError(f"cannot write {option} {path}: {error.strerror}; choose another place") from None


def write_atomic(path: Path, data: bytes) -> None:
    """Write ``data`` beside ``path``, sync it, rename it into place; OSError leaves the old file."""
    partial = _partial(path)
    try:
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def _partial(path: Path) -> Path:
    return path.with_name(f".{path.name}.partial")


def sync_folder(folder: Path) -> None:
    """Make the names in ``folder`` durable: a rename or a new file lives in the folder's own data."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
