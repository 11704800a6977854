"""Open a GGUF file with the ``gguf`` library and turn its tensors into canonical ones."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

from detharness.checkpoints.config import ModelConfig
from detharness.checkpoints.model_files import reading, refuse_lfs_pointer, require_file
from detharness.checkpoints.weights import StoredTensor, check_tensors, expected_shapes
from detharness.errors import CheckpointError

_TYPES = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")
_ROPE_FACTORS = "rope_freqs.weight"
_OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_INNER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_FROM_INNER = {value: key for key, value in _INNER.items()}
_FROM_OUTER = {value: key for key, value in _OUTER.items()}


def canonical_name(gguf_name: str) -> str:
    """``blk.3.attn_q.weight`` -> ``model.layers.3.self_attn.q_proj.weight``; an unknown name comes back as it is."""
    stem, _, suffix = gguf_name.rpartition(".")
    if stem in _OUTER:
        return f"{_OUTER[stem]}.{suffix}"
    match = re.fullmatch(r"blk\.(0|[1-9]\d*)\.(\w+)", stem)
    if match and match[2] in _INNER:
        return f"model.layers.{match[1]}.{_INNER[match[2]]}.{suffix}"
    return gguf_name


def gguf_name(canonical: str) -> str:
    """The inverse of ``canonical_name``."""
    stem, _, suffix = canonical.rpartition(".")
    if stem in _FROM_OUTER:
        return f"{_FROM_OUTER[stem]}.{suffix}"
    match = re.fullmatch(r"model\.layers\.(\d+)\.([\w.]+)", stem)
    if match and match[2] in _FROM_INNER:
        return f"blk.{match[1]}.{_FROM_INNER[match[2]]}.{suffix}"
    return canonical


class _MappedBytes(np.ndarray[Any, np.dtype[np.uint8]]):
    """A memory map without the bookkeeping that ``numpy.memmap`` does at every slice."""

    filename: Any = None


class _Reader(gguf.GGUFReader):  # type: ignore[misc]  # The library's annotations are not followed (pyproject.toml).
    """The library's reader over ``_MappedBytes``: it slices several times per word of the vocabulary.

    Opening SmolLM2 takes half the time, and every load opens the file.
    """

    @property
    def data(self) -> Any:
        return self._data

    @data.setter
    def data(self, mapped: np.memmap[Any, np.dtype[np.uint8]]) -> None:
        self._data = mapped.view(_MappedBytes)
        self._data.filename = mapped.filename


def _short_values(reader: gguf.GGUFReader) -> dict[str, Any]:
    """Metadata by key, without the tokenizer's: its arrays are long and it reads them itself."""
    return {
        key: field.contents()
        for key, field in reader.fields.items()
        if not key.startswith("tokenizer.ggml.") and not key.startswith("GGUF.")
    }


class GgufFile:
    """A GGUF file whose structure has been read in full; ``reader`` is the library's own object.

    ``metadata``: key -> Python value, but for the tokenizer's keys.

    A file that is missing, cut short, damaged or of the other byte order raises ``CheckpointError``.
    """

    def __init__(self, path: Path) -> None:
        require_file(path, "it was given as the model")
        self.path = path
        size = path.stat().st_size
        with reading(path), path.open("rb") as file:
            start = file.read(64)
        refuse_lfs_pointer(path, start)
        if not start.startswith(b"GGUF"):
            raise CheckpointError(f"{path} is not a GGUF file ({size} bytes): give a GGUF file or a model folder")
        try:
            with np.errstate(all="raise"):
                self.reader = _Reader(path)
                self.metadata = _short_values(self.reader)
        except (ArithmeticError, LookupError, MemoryError, OSError, RecursionError, TypeError, ValueError) as error:
            # The library walks the bytes unchecked, so damage surfaces as whatever numpy or Python raises first.
            raise CheckpointError(
                f"{path} is damaged or cut short at {size} bytes ({error or type(error).__name__}): fetch it again"
            ) from None
        if self.reader.byte_order == "S":
            raise CheckpointError(f"{path} is a big-endian GGUF file, which is not supported: fetch the usual one")
        self._tensors = {tensor.name: tensor for tensor in self.reader.tensors}

    def integer(self, key: str) -> int | None:
        """One whole number of the metadata, or None."""
        field = self.reader.get_field(key)
        value = None if field is None else field.contents()
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Tensor name in the file -> shape, rows first."""
        return {name: tuple(int(size) for size in reversed(tensor.shape)) for name, tensor in self._tensors.items()}

    def rope_factors(self) -> Any:
        """The values of ``rope_freqs.weight`` as a numpy array, or None."""
        tensor = self._tensors.get(_ROPE_FACTORS)
        if tensor is None:
            return None
        self._require_supported(tensor)
        return gguf.dequantize(tensor.data, tensor.tensor_type)

    def check(self, config: ModelConfig) -> None:
        """Raise ``CheckpointError`` unless the file holds exactly the tensors of ``config`` in supported types."""
        stored = {
            canonical_name(name): StoredTensor(shape, str(self.path))
            for name, shape in self.shapes().items()
            if name != _ROPE_FACTORS
        }
        check_tensors(expected_shapes(config), stored, str(self.path), gguf_name)
        for tensor in self._tensors.values():
            self._require_supported(tensor)

    def _require_supported(self, tensor: gguf.ReaderTensor) -> None:
        if tensor.tensor_type.name not in _TYPES:
            raise CheckpointError(
                f"{self.path}: the tensor {tensor.name} has the quantisation {tensor.tensor_type.name}, which is not "
                f"supported (supported: {', '.join(_TYPES)}): use another file of this model"
            )

    def dequantise(self, config: ModelConfig, dtype: torch.dtype) -> Mapping[str, torch.Tensor]:
        """All tensors of ``config`` under canonical names in ``dtype``: fp32 values, rounded once."""
        tensors = {}
        for name, shape in expected_shapes(config).items():
            source = self._tensors[gguf_name(name)]
            values = np.array(gguf.dequantize(source.data, source.tensor_type), dtype=np.float32)
            if config.family == "llama" and re.search(r"self_attn\.[qk]_proj\.(weight|bias)$", name):
                heads = config.num_heads if ".q_proj." in name else config.num_kv_heads
                values = _to_half_rotation(values.reshape(shape), heads)
            tensors[name] = torch.from_numpy(np.ascontiguousarray(values.reshape(shape))).to(dtype)
        return tensors


def _to_half_rotation(values: Any, heads: int) -> Any:
    """Undo llama.cpp's row order for arch llama: pairs lie side by side there, half a head apart in HF."""
    rows = values.shape[0]
    return values.reshape(heads, rows // heads // 2, 2, -1).swapaxes(1, 2).reshape(values.shape)
