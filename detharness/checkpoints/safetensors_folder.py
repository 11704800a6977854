"""Weights of a safetensors folder: one file, or shards under an index that is the only authority on names."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from detharness.checkpoints.config import ModelConfig
from detharness.checkpoints.model_files import read_json_object, reading, refuse_lfs_pointer, require_file
from detharness.checkpoints.weights import EMBEDDING, HEAD, StoredTensor, Weights, check_tensors, expected_shapes
from detharness.errors import CheckpointError

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
_DTYPES = ("F32", "F16", "BF16")
_PICKLE_STARTS = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
_PURPOSE = "it holds the weights"


@dataclass(frozen=True)
class TensorFiles:
    """The weight files of a folder in index order, and the tensors taken from each (None: all of them)."""

    files: tuple[Path, ...]
    allowed: Mapping[Path, tuple[str, ...]] | None
    index: Path | None


def find_tensor_files(folder: Path) -> TensorFiles:
    """Locate the weight files: the index decides, then ``model.safetensors``; other files are never read."""
    index = folder / INDEX_NAME
    if index.exists() or index.is_symlink():
        return _read_index(folder, index)
    single = folder / SINGLE_NAME
    if single.exists() or single.is_symlink():
        return TensorFiles((require_file(single, _PURPOSE),), None, None)
    raise CheckpointError(_nothing_found(folder))


def _read_index(folder: Path, index: Path) -> TensorFiles:
    weight_map = read_json_object(index, "it names the weight files").get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index}: weight_map is missing or empty: fetch the file again")
    allowed: dict[Path, list[str]] = {}
    for tensor, file_name in weight_map.items():
        if not isinstance(file_name, str) or not _stays_inside(file_name):
            raise CheckpointError(
                f"{index}: the tensor {tensor} points to {file_name!r}, which is not a file of this folder: "
                "correct the index"
            )
        allowed.setdefault(folder / file_name, []).append(tensor)
    for path in allowed:
        require_file(path, f"the index {INDEX_NAME} names it")
    return TensorFiles(tuple(allowed), {path: tuple(names) for path, names in allowed.items()}, index)


def _stays_inside(file_name: str) -> bool:
    path = PurePosixPath(file_name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts and "\\" not in file_name


def _nothing_found(folder: Path) -> str:
    with reading(folder):
        names = sorted(path.name for path in folder.iterdir())
    start = f"{folder} has neither {SINGLE_NAME} nor {INDEX_NAME}"
    consolidated = [name for name in names if name.startswith("consolidated") and name.endswith(".safetensors")]
    pickles = [name for name in names if name.endswith((".bin", ".pt", ".pth", ".ckpt"))]
    ggufs = [name for name in names if name.endswith(".gguf")]
    if ggufs:
        return f"{start}: give the GGUF file itself, {folder / ggufs[0]}"
    if consolidated:
        return f"{start}, only {consolidated[0]} in another tensor naming: fetch the Hugging Face files of the model"
    if pickles:
        return f"{start}, and {pickles[0]} is a pickle, which is never loaded: convert it to safetensors"
    return f"{start}: fetch the weight files of the model"


def check_header(path: Path) -> dict[str, Any]:
    """Return the parsed header of a safetensors file after checking that it covers the file exactly.

    The library's own messages name no file and mistake an LFS pointer for a huge header, so the usual kinds of
    damage are told apart here, with sizes.
    """
    size = path.stat().st_size
    with reading(path), path.open("rb") as file:
        start = file.read(64)
        refuse_lfs_pointer(path, start)
        if size < 8:
            raise CheckpointError(f"{path} is damaged: it has {size} bytes, too few for a header; fetch it again")
        (length,) = struct.unpack("<Q", start[:8])
        if length > size - 8:
            # Only now: a sound header of 640 bytes starts with the same two bytes as a pickle.
            if start.startswith(_PICKLE_STARTS):
                raise CheckpointError(
                    f"{path} is damaged: it is a renamed pickle of {size} bytes; convert it to safetensors"
                )
            raise CheckpointError(
                f"{path} is damaged: its header claims {length} bytes, the file has {size}; fetch it again"
            )
        file.seek(8)
        raw = file.read(length)
    try:
        header = json.loads(raw)
        ends = [int(entry["data_offsets"][1]) for name, entry in header.items() if name != "__metadata__"]
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
        raise CheckpointError(
            f"{path} is damaged: the header of {length} bytes in a file of {size} bytes is not valid; fetch it again"
        ) from None
    described = 8 + length + max(ends, default=0)
    if described != size:
        raise CheckpointError(
            f"{path} is damaged: its header describes {described} bytes, the file has {size}; fetch it again"
        )
    return dict(header)


class FolderReader:
    """Weight files and the tensors taken from them; a file stays mapped until ``release``, and while a tensor lives."""

    def __init__(self, found: TensorFiles) -> None:
        self.stored: dict[str, StoredTensor] = {}
        self.notes: list[str] = []
        self._files: dict[str, Path] = {}
        self._handles: dict[Path, Any] = {}
        ignored = 0
        for path in found.files:
            header = check_header(path)
            names = [name for name in header if name != "__metadata__"]
            if found.allowed is not None:
                ignored += len(set(names) - set(found.allowed[path]))
                names = self._listed(path, found, header)
            self._handles[path] = self._open(path)
            for name in names:
                self._add(name, header[name], path)
        if ignored:
            self.notes.append(f"{ignored} tensors that the index does not assign to their file were not read")

    @staticmethod
    def _listed(path: Path, found: TensorFiles, header: Mapping[str, Any]) -> list[str]:
        assert found.allowed is not None
        absent = [name for name in found.allowed[path] if name not in header]
        if absent:
            raise CheckpointError(
                f"{found.index} places the tensor {absent[0]} in {path.name}, but that file does not hold it: fetch "
                "both again"
            )
        return list(found.allowed[path])

    @staticmethod
    def _open(path: Path) -> Any:
        try:
            return safe_open(path, framework="pt", device="cpu")
        except (SafetensorError, OSError) as error:
            size = path.stat().st_size
            raise CheckpointError(f"{path} is damaged ({error}; {size} bytes): fetch it again") from None

    def _add(self, name: str, entry: Mapping[str, Any], path: Path) -> None:
        if entry["dtype"] not in _DTYPES:
            raise CheckpointError(
                f"{path}: the tensor {name} has dtype {entry['dtype']}, which is not supported (supported: "
                f"{', '.join(_DTYPES)}): use the original checkpoint"
            )
        self.stored[name] = StoredTensor(tuple(int(size) for size in entry["shape"]), str(path))
        self._files[name] = path

    def release(self) -> None:
        """Let go of the files: they are unmapped when the last tensor read from them dies."""
        self._handles.clear()

    def read(self, name: str) -> torch.Tensor:
        """Return the tensor as stored, memory-mapped."""
        path = self._files[name]
        if path not in self._handles:
            self._handles[path] = self._open(path)
        tensor = self._handles[path].get_tensor(name)
        assert isinstance(tensor, torch.Tensor)
        return tensor


def load_folder_weights(
    folder: Path, found: TensorFiles, config: ModelConfig, dtype: torch.dtype
) -> tuple[Weights, tuple[str, ...]]:
    """Return the folder's weights in ``dtype`` and notes; every mismatch with ``config`` is an error that names it."""
    reader = FolderReader(found)
    for name in [name for name in reader.stored if name.endswith("rotary_emb.inv_freq")]:
        del reader.stored[name]  # A buffer that older transformers saved; it is computed from the config.
    expected = expected_shapes(config)
    renamed: dict[str, str] = {}
    if config.tie_embeddings and HEAD in reader.stored:
        renamed = _resolve_saved_head(reader, folder)
    check_tensors(expected, reader.stored, str(folder))
    weights = Weights(expected, reader, dtype, renamed)
    return weights, tuple(reader.notes)


def _resolve_saved_head(reader: FolderReader, folder: Path) -> dict[str, str]:
    """A tied model that holds ``lm_head.weight`` too: equal is a copy, different is a contradiction."""
    head = reader.stored.pop(HEAD)
    if EMBEDDING not in reader.stored:
        reader.stored[EMBEDDING] = head
        reader.notes.append(f"{EMBEDDING} is read from {HEAD}: the two are tied")
        return {EMBEDDING: HEAD}
    first, second = reader.read(EMBEDDING), reader.read(HEAD)
    if first.dtype != second.dtype or not torch.equal(first, second):
        raise CheckpointError(
            f"{folder}: tie_word_embeddings is true, but {HEAD} differs from {EMBEDDING}: set tie_word_embeddings to "
            "false if the head was trained apart"
        )
    reader.notes.append(f"{HEAD} is a copy of {EMBEDDING}: the two are tied")
    return {}
