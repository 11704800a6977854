"""The tensors a decoder needs, under their canonical Hugging Face names, as a read-only mapping."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

from detharness.checkpoints.config import ModelConfig
from detharness.errors import CheckpointError

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"


class TensorSource(Protocol):
    """Where tensors come from."""

    def read(self, name: str) -> torch.Tensor:
        """The tensor as stored."""

    def release(self) -> None:
        """Give back memory that the next ``read`` can get again."""


class InMemory:
    """Tensors that are nowhere else: nothing to give back."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._tensors = tensors

    def read(self, name: str) -> torch.Tensor:
        """The tensor itself."""
        return self._tensors[name]

    def release(self) -> None:
        """They stay."""


class Weights(Mapping[str, torch.Tensor]):
    """Canonical name -> tensor in ``dtype``, in the order of ``expected_shapes``.

    Tensors stay memory-mapped where the file holds them in ``dtype``; otherwise each access converts anew (fp32 ->
    bf16 rounds to nearest even), so keep what you need. Never write to a tensor. Q and K rows are in the
    half-rotation layout of Hugging Face. ``stored_as``: canonical name -> name in the source, where they differ.
    """

    def __init__(
        self,
        names: Iterable[str],
        source: TensorSource,
        dtype: torch.dtype,
        stored_as: Mapping[str, str] | None = None,
    ) -> None:
        self._names = {name: (stored_as or {}).get(name, name) for name in names}
        self._source = source
        self.dtype = dtype

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._source.read(self._names[name]).to(self.dtype)

    def release(self) -> None:
        """Unmap the files once no tensor of them is in use; the next access maps them again."""
        self._source.release()

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@dataclass(frozen=True)
class StoredTensor:
    """Where a tensor lies: ``shape`` rows first, ``origin`` the file for messages."""

    shape: tuple[int, ...]
    origin: str


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Canonical name -> shape of every tensor of the architecture; ``lm_head.weight`` only when it is not tied."""
    hidden, inner = config.hidden_size, config.intermediate_size
    query, key_value = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (config.vocab_size, hidden)}
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}."
        shapes[prefix + "input_layernorm.weight"] = (hidden,)
        linears = (
            ("self_attn.q_proj", query, hidden, config.qkv_bias),
            ("self_attn.k_proj", key_value, hidden, config.qkv_bias),
            ("self_attn.v_proj", key_value, hidden, config.qkv_bias),
            ("self_attn.o_proj", hidden, query, config.output_bias),
            ("mlp.gate_proj", inner, hidden, config.mlp_bias),
            ("mlp.up_proj", inner, hidden, config.mlp_bias),
            ("mlp.down_proj", hidden, inner, config.mlp_bias),
        )
        for name, rows, columns, has_bias in linears:
            shapes[f"{prefix}{name}.weight"] = (rows, columns)
            if has_bias:
                shapes[f"{prefix}{name}.bias"] = (rows,)
        if config.qk_norm:
            shapes[prefix + "self_attn.q_norm.weight"] = (config.head_dim,)
            shapes[prefix + "self_attn.k_norm.weight"] = (config.head_dim,)
        shapes[prefix + "post_attention_layernorm.weight"] = (hidden,)
    shapes["model.norm.weight"] = (hidden,)
    if not config.tie_embeddings:
        shapes[HEAD] = (config.vocab_size, hidden)
    return shapes


def check_tensors(
    expected: Mapping[str, tuple[int, ...]],
    stored: Mapping[str, StoredTensor],
    where: str,
    spell: Callable[[str], str] = str,
) -> None:
    """Raise ``CheckpointError`` naming missing, leftover or wrongly shaped tensors.

    ``stored`` has canonical names (unknown ones as the file spells them); ``spell`` gives the file's spelling of a
    canonical name for the message.
    """
    missing = [name for name in expected if name not in stored]
    if missing:
        hint = ""
        if missing == [HEAD]:
            hint = " (the config says that the head is not tied to the embedding)"
        raise CheckpointError(f"{where} lacks {_listed(missing, spell)}{hint}: fetch the model again")
    leftover = [name for name in stored if name not in expected]
    if leftover:
        raise CheckpointError(
            f"{where} holds {_listed(leftover, spell)}, which the architecture in its config does not use: correct the "
            "config or use another model"
        )
    for name, shape in expected.items():
        if stored[name].shape != shape:
            raise CheckpointError(
                f"{stored[name].origin}: the tensor {spell(name)} has shape {list(stored[name].shape)}, but the config "
                f"asks for {list(shape)}: correct the config or fetch the model again"
            )


def _listed(names: list[str], spell: Callable[[str], str]) -> str:
    shown = ", ".join(spell(name) for name in names[:8])
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return f"the tensor{'s' if len(names) > 1 else ''} {shown}{more}"
