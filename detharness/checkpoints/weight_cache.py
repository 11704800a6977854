"""Dequantised GGUF weights on disk, so that a warm start maps them instead of computing them.

One safetensors file per (digest of the GGUF, dtype, version of the gguf library, layout). It is written beside its
final name and renamed, and carries a checksum that is verified at every load: a damaged file is rebuilt.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from detharness.checkpoints.safetensors_folder import FolderReader, TensorFiles, check_header
from detharness.checkpoints.weights import InMemory, Weights
from detharness.errors import CheckpointError
from detharness.records.user_cache import user_cache

# Raise this whenever the names, the row order or the rounding of cached tensors change.
LAYOUT_VERSION = 1


def cache_folder() -> Path | None:
    """The folder of dequantised weights; None if there is no home folder to put it in."""
    return user_cache("weights")


@dataclass(frozen=True)
class CacheKey:
    """What the cached bits depend on."""

    digest: str
    dtype: torch.dtype

    def name(self) -> str:
        """The key in one word: the file's name, and what the file says about itself."""
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{self.digest}-{dtype}-gguf{version('gguf')}-v{LAYOUT_VERSION}"


def cached_weights(
    key: CacheKey, shapes: Mapping[str, tuple[int, ...]], build: Callable[[], Mapping[str, torch.Tensor]]
) -> tuple[Weights, tuple[str, ...]]:
    """Return the weights for ``key``, mapped from the cache, or built and then cached.

    A cache that cannot be read or written costs time, never correctness: the weights are built in memory and a note
    says why.
    """
    folder = cache_folder()
    if folder is None:
        return _in_memory(build(), key), ("weights not cached: there is no home folder; set DETHARNESS_CACHE",)
    path = folder / f"{key.name()}.safetensors"
    notes: list[str] = []
    if path.exists():
        try:
            return _open_verified(path, key, shapes), ()
        except (CheckpointError, OSError) as error:
            notes.append(f"cached weights rebuilt: {_reason(error)}")
    tensors = build()
    try:
        _write(path, tensors, key)
        return _open_verified(path, key, shapes), tuple(notes)
    except (CheckpointError, OSError, SafetensorError) as error:
        return _in_memory(tensors, key), (*notes, f"weights not cached: {_reason(error)}; see DETHARNESS_CACHE")


def _reason(error: Exception) -> str:
    """Why, without a path: notes go into reports, which name no place of the machine."""
    return error.strerror or "the disk failed" if isinstance(error, OSError) else "the file was damaged"


def _in_memory(tensors: Mapping[str, torch.Tensor], key: CacheKey) -> Weights:
    return Weights(tensors, InMemory(tensors), key.dtype)


def _write(path: Path, tensors: Mapping[str, torch.Tensor], key: CacheKey) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".unfinished-", suffix=".safetensors")
    try:
        os.close(descriptor)
        save_file(dict(tensors), temporary, metadata=_seal(key, tensors))
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _seal(key: CacheKey, tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """The file's metadata: its key, and a CRC-32 over the tensors' bytes in name order, quick enough for every load.

    One entry only: the library writes several in random order, and equal weights should give equal files.
    """
    value = 0
    for name in sorted(tensors):
        value = zlib.crc32(tensors[name].view(torch.uint8).numpy().data, value)
    return {"seal": f"{key.name()} crc32 {value:08x}"}


def _open_verified(path: Path, key: CacheKey, shapes: Mapping[str, tuple[int, ...]]) -> Weights:
    metadata = check_header(path).get("__metadata__", {})
    reader = FolderReader(TensorFiles((path,), None, None))
    tensors = {name: reader.read(name) for name in reader.stored}
    if {name: tuple(tensor.shape) for name, tensor in tensors.items()} != dict(shapes):
        raise CheckpointError(f"{path} is damaged: its tensors are not those of the model")
    if metadata != _seal(key, tensors):
        raise CheckpointError(f"{path} is damaged: its checksum does not match")
    reader.release()  # The checksum touched every page; what the decoder needs is mapped again piece by piece.
    return Weights(shapes, reader, key.dtype)
