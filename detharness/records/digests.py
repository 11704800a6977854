"""SHA-256 of bytes, files and values, as 64 lower-case hexadecimal digits."""

from __future__ import annotations

import hashlib
from pathlib import Path

from detharness.records.canonical import canonical_bytes


def sha256_bytes(data: bytes) -> str:
    """Digest of ``data``."""
    return hashlib.sha256(data).hexdigest()


def sha256_file(path: Path) -> str:
    """Digest of a file's content, read in pieces; OSError if it cannot be read."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_value(value: object) -> str:
    """Digest of the value's canonical JSON; the errors of ``canonical_bytes``."""
    return sha256_bytes(canonical_bytes(value))
