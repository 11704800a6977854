"""GGUF files that the tests build: any metadata, any tensor bytes, a byte-level tokenizer inside."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from tokenizers import pre_tokenizers

WriteGguf = Callable[..., Path]

SIZES: dict[str, Any] = {
    "block_count": 2,
    "context_length": 512,
    "embedding_length": 256,
    "feed_forward_length": 512,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "rope.freq_base": 1e4,
}


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    kinds = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    if isinstance(value, list):
        writer.add_array(key, value)
    else:
        kinds[type(value)](key, value)


def _write(
    path: Path,
    tensors: Mapping[str, tuple[np.ndarray, gguf.GGMLQuantizationType]],
    arch: str = "llama",
    metadata: Mapping[str, Any] | None = None,
    vocab: int = 264,
) -> Path:
    """Write ``tensors`` (bytes or values as the type stores them); ``metadata`` overrides, None leaves a key out."""
    tokens = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*tokens, "th", "<eos>"]
    tokens += [f"[PAD{index}]" for index in range(len(tokens), vocab)]
    values: dict[str, Any] = {
        **{f"{arch}.{key}": value for key, value in SIZES.items()},
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * 257 + [3] + [5] * (vocab - 258),
        "tokenizer.ggml.merges": ["t h"],
        "tokenizer.ggml.eos_token_id": 257,
        **(metadata or {}),
    }
    writer = gguf.GGUFWriter(path, arch)
    for key, value in values.items():
        if value is not None and key != "general.architecture":
            _add(writer, key, value)
    for name, (data, kind) in tensors.items():
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="session")
def write_gguf() -> WriteGguf:
    """``write_gguf(path, tensors, arch=, metadata=, vocab=)``."""
    return _write
