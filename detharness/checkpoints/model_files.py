"""Strict reading of the files that make up a model: every failure names the file and what to do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from detharness.errors import CheckpointError

LFS_POINTER_START = b"version https://git-lfs.github.com/spec/"


def require_file(path: Path, purpose: str) -> Path:
    """Return ``path`` if it is a readable regular file; otherwise say what is missing and why it is needed."""
    if path.is_symlink() and not path.exists():
        raise CheckpointError(
            f"{path} is a link to a file that does not exist ({purpose}): the download was interrupted or its "
            "blobs were deleted; fetch the model again"
        )
    if not path.exists():
        raise CheckpointError(f"{path} is missing ({purpose}): fetch the file or give another model")
    if not path.is_file():
        raise CheckpointError(f"{path} is not a file ({purpose}): replace it with the file or give another model")
    return path


def refuse_lfs_pointer(path: Path, first_bytes: bytes) -> None:
    """Raise if the file is a Git-LFS pointer: a text stub of some 135 bytes in place of the content."""
    if first_bytes.startswith(LFS_POINTER_START):
        raise CheckpointError(
            f"{path} is a Git-LFS pointer of {path.stat().st_size} bytes, not the file itself: run 'git lfs pull' in "
            "its repository or download the file"
        )


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn the operating system's refusals inside the block into a ``CheckpointError`` that names ``path``."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"cannot read {path} ({error.strerror or error}): check its permissions and disk"
        ) from None


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"the key {key!r} appears twice")
        result[key] = value
    return result


def read_json_object(path: Path, purpose: str) -> dict[str, Any]:
    """Read a JSON object from ``path``; a missing, damaged or non-object file is a ``CheckpointError``."""
    require_file(path, purpose)
    with reading(path):
        content = path.read_bytes()
    refuse_lfs_pointer(path, content[:64])
    try:
        value = json.loads(content.decode("utf-8"), object_pairs_hook=_refuse_duplicates)
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors.
        raise CheckpointError(f"{path} is not valid JSON ({error}): fetch the file again") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} must hold a JSON object, not {type(value).__name__}: fetch the file again")
    return value
