"""Safetensors folders, sound, odd and damaged: what is read is right, what is wrong is named."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

from detharness.checkpoints.config import ModelConfig
from detharness.checkpoints.config_json import parse_config
from detharness.checkpoints.model_files import read_json_object
from detharness.checkpoints.safetensors_folder import INDEX_NAME, check_header, find_tensor_files, load_folder_weights
from detharness.checkpoints.weights import Weights
from detharness.errors import CheckpointError

Tensors = dict[str, torch.Tensor]
Build = Callable[..., Path]


def load(folder: Path, dtype: torch.dtype = torch.float32) -> tuple[Weights, ModelConfig, str]:
    path = folder / "config.json"
    config, _ = parse_config(read_json_object(path, "test"), str(path))
    weights, notes = load_folder_weights(folder, find_tensor_files(folder), config, dtype)
    return weights, config, "\n".join(notes)


def refusal(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        load(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def folder(tiny_folder: Build, tmp_path: Path) -> Path:
    """A private copy of a tiny Llama folder, to damage."""
    return shutil.copytree(tiny_folder("llama"), tmp_path / "model")


def read(path: Path) -> Tensors:
    """All tensors of a file in memory: ``load_file`` maps it, and these tests write over it."""
    return {name: tensor.clone() for name, tensor in load_file(path).items()}


def shard(folder: Path) -> dict[str, str]:
    """Split model.safetensors into two oddly named shards under an index; return the index's weight map."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    parts = {"part-one.safetensors": names[:5], "layers/rest.st": names[5:]}
    (folder / "layers").mkdir()
    for file_name, members in parts.items():
        save_file({name: tensors[name] for name in members}, folder / file_name)
    weight_map = {name: file_name for file_name, members in parts.items() for name in members}
    write_index(folder, weight_map)
    return weight_map


def write_index(folder: Path, weight_map: dict[str, Any]) -> None:
    (folder / INDEX_NAME).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def edit_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def edit_tensors(folder: Path, edit: Callable[[Tensors], object]) -> None:
    tensors = read(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors")


FAMILY_CONFIGS = {
    "llama": (LlamaConfig, {"attention_bias": True, "mlp_bias": True}),
    "mistral": (MistralConfig, {"head_dim": 16}),
    "qwen2": (Qwen2Config, {"tie_word_embeddings": True}),
    "qwen3": (Qwen3Config, {"head_dim": 16, "attention_bias": True}),
}


@pytest.mark.parametrize("family", FAMILY_CONFIGS)
@pytest.mark.parametrize("max_shard_size", ["5GB", "20KB"])
def test_what_transformers_saves_is_read_bit_for_bit(family: str, max_shard_size: str, tmp_path: Path) -> None:
    kind, changes = FAMILY_CONFIGS[family]
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(
        kind(
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            vocab_size=64,
            **changes,
        )
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()  # Norms and biases too: the library starts them at ones and zeros.
    model.save_pretrained(tmp_path, max_shard_size=max_shard_size)
    assert (tmp_path / INDEX_NAME).exists() is (max_shard_size == "20KB")
    weights, config, _ = load(tmp_path)
    theirs = dict(model.named_parameters())
    assert set(weights) == set(theirs)
    assert all(torch.equal(weights[name], tensor) for name, tensor in theirs.items())
    assert config.tie_embeddings is ("lm_head.weight" not in weights)


@pytest.mark.parametrize("length", [0x0280, 0x0380, 0x0480, 0x0580])
def test_header_whose_length_looks_like_a_pickle(length: int, tmp_path: Path) -> None:
    """The first two bytes of these files are those of a pickle of protocol 2 to 5."""
    path = tmp_path / "x.safetensors"
    save_file({"a": torch.ones(2)}, path, metadata={"padding": "x" * (length - 100)})
    (start,) = struct.unpack("<Q", path.read_bytes()[:8])
    save_file({"a": torch.ones(2)}, path, metadata={"padding": "x" * (2 * length - 100 - start)})
    assert path.read_bytes()[:2] == bytes([0x80, length >> 8])
    assert "a" in check_header(path)


def test_bf16_rounds_to_nearest_even_once(folder: Path) -> None:
    # Ties to even in both directions, just above and below a tie, carries into the exponent, subnormals, overflow.
    bits = [0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF, 0x3FFFFFFF, 0x00000001, 0x00018000, 0x7F7FFFFF, 0x80008000]
    special = torch.tensor(bits, dtype=torch.int64).to(torch.int32).view(torch.float32)

    def edit(tensors: Tensors) -> None:
        tensors["model.norm.weight"][: len(bits)] = special

    edit_tensors(folder, edit)
    stored = load_file(folder / "model.safetensors")
    weights, _, _ = load(folder, torch.bfloat16)
    for name, tensor in stored.items():
        pattern = tensor.view(torch.int32).to(torch.int64) & 0xFFFFFFFF
        rounded = (pattern + 0x7FFF + ((pattern >> 16) & 1)) >> 16
        assert torch.equal(weights[name].view(torch.int16).to(torch.int64) & 0xFFFF, rounded)


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16])
def test_half_precision_folders_widen_exactly(folder: Path, stored: torch.dtype) -> None:
    edit_tensors(folder, lambda tensors: tensors.update({name: t.to(stored) for name, t in tensors.items()}))
    weights, _, _ = load(folder)
    for name, tensor in load_file(folder / "model.safetensors").items():
        assert torch.equal(weights[name], tensor.float())


def test_weights_are_a_read_only_mapping(folder: Path) -> None:
    weights, _, _ = load(folder)
    assert len(weights) == len(list(weights)) == len(load_file(folder / "model.safetensors"))
    assert next(iter(weights)) == "model.embed_tokens.weight"
    assert not hasattr(weights, "__setitem__")
    with pytest.raises(KeyError):
        weights["model.embed_tokens.bias"]


def test_index_is_trusted_whatever_the_shards_are_called(folder: Path) -> None:
    before = load_file(folder / "model.safetensors")
    shard(folder)
    weights, _, _ = load(folder)
    assert all(torch.equal(weights[name], tensor) for name, tensor in before.items())


def test_files_outside_the_index_are_never_read(folder: Path) -> None:
    """Stray shards, consolidated files and an unsharded file beside the index hold poison here."""
    before = load_file(folder / "model.safetensors")
    shard(folder)
    poison = {name: torch.full_like(tensor, torch.nan) for name, tensor in before.items()}
    for name in ("model.safetensors", "consolidated.safetensors", "model-00001-of-00002.safetensors"):
        save_file(poison, folder / name)
    (folder / "a-damaged.safetensors").write_bytes(b"nothing")
    weights, _, _ = load(folder)
    assert all(torch.equal(weights[name], tensor) for name, tensor in before.items())


def test_tensors_that_the_index_does_not_assign_to_a_file_are_not_read(folder: Path) -> None:
    before = load_file(folder / "model.safetensors")
    weight_map = shard(folder)
    stale = read(folder / "part-one.safetensors")
    other = next(name for name, file_name in weight_map.items() if file_name == "layers/rest.st")
    save_file({**stale, other: torch.zeros(3), "old.weight": torch.zeros(3)}, folder / "part-one.safetensors")
    weights, _, notes = load(folder)
    assert torch.equal(weights[other], before[other])
    assert "2 tensors" in notes


def test_single_file_wins_over_consolidated(folder: Path) -> None:
    save_file({"x": torch.zeros(1)}, folder / "consolidated.safetensors")
    load(folder)


def damage_missing_shard(folder: Path) -> str:
    shard(folder)
    (folder / "layers" / "rest.st").unlink()
    save_file({"x": torch.zeros(1)}, folder / "layers" / "other.safetensors")
    return "rest.st is missing"


def damage_index_entry(folder: Path) -> str:
    weight_map = shard(folder)
    name = next(name for name, file_name in weight_map.items() if file_name == "layers/rest.st")
    write_index(folder, {**weight_map, name: "part-one.safetensors"})
    return f"places the tensor {name} in part-one.safetensors"


def damage_index_escapes(folder: Path) -> str:
    weight_map = shard(folder)
    write_index(folder, dict.fromkeys(weight_map, "../elsewhere.safetensors"))
    return "not a file of this folder"


def damage_index_absolute(folder: Path) -> str:
    weight_map = shard(folder)
    write_index(folder, dict.fromkeys(weight_map, "/etc/passwd"))
    return "not a file of this folder"


def damage_index_not_json(folder: Path) -> str:
    shard(folder)
    (folder / INDEX_NAME).write_text('{"weight_map": {')
    return f"{INDEX_NAME} is not valid JSON"


def damage_index_twice(folder: Path) -> str:
    shard(folder)
    (folder / INDEX_NAME).write_text('{"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}}')
    return "appears twice"


def damage_index_empty(folder: Path) -> str:
    shard(folder)
    write_index(folder, {})
    return "weight_map is missing or empty"


def damage_index_without_map(folder: Path) -> str:
    (folder / INDEX_NAME).write_text("[]")
    return "must hold a JSON object"


def damage_lfs_pointer(folder: Path) -> str:
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 269060552\n"
    (folder / "model.safetensors").write_text(pointer)
    return f"is a Git-LFS pointer of {len(pointer)} bytes"


def damage_lfs_config(folder: Path) -> str:
    (folder / "config.json").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 700\n")
    return "config.json is a Git-LFS pointer"


def damage_pickle(folder: Path) -> str:
    torch.save({"x": torch.zeros(3)}, folder / "model.safetensors")
    return "it is a renamed pickle of"


def damage_old_pickle(folder: Path) -> str:
    torch.save({"x": torch.zeros(3)}, folder / "model.safetensors", _use_new_zipfile_serialization=False)
    return "it is a renamed pickle of"


def damage_trailing_bytes(folder: Path) -> str:
    path = folder / "model.safetensors"
    size = path.stat().st_size
    path.write_bytes(path.read_bytes() + b"\0" * 16)
    return f"its header describes {size} bytes, the file has {size + 16}"


def damage_truncated(folder: Path) -> str:
    path = folder / "model.safetensors"
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-100])
    return f"its header describes {size} bytes, the file has {size - 100}"


def damage_short_header(folder: Path) -> str:
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", 1000) + b"{}")
    return "its header claims 1000 bytes, the file has 10"


def damage_no_header(folder: Path) -> str:
    (folder / "model.safetensors").write_bytes(b"\x01")
    return "it has 1 bytes, too few"


def damage_empty(folder: Path) -> str:
    (folder / "model.safetensors").write_bytes(b"")
    return "it has 0 bytes, too few"


def damage_header_not_json(folder: Path) -> str:
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", 4) + b"nope")
    return "the header of 4 bytes in a file of 12 bytes is not valid"


def damage_header_shape(folder: Path) -> str:
    header = json.dumps({"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 4]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"\0" * 4)
    return "is damaged (Error while deserializing header"


def damage_dangling_link(folder: Path) -> str:
    path = folder / "model.safetensors"
    path.unlink()
    path.symlink_to(folder / "blobs" / "gone")
    return "model.safetensors is a link to a file that does not exist"


def damage_dangling_config(folder: Path) -> str:
    path = folder / "config.json"
    path.unlink()
    path.symlink_to(folder / "gone")
    return "config.json is a link to a file that does not exist"


def damage_folder_in_place_of_file(folder: Path) -> str:
    path = folder / "model.safetensors"
    path.unlink()
    path.mkdir()
    return "model.safetensors is not a file"


def damage_only_pickles(folder: Path) -> str:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    return "pytorch_model.bin is a pickle, which is never loaded"


def damage_only_consolidated(folder: Path) -> str:
    (folder / "model.safetensors").rename(folder / "consolidated.safetensors")
    return "only consolidated.safetensors in another tensor naming"


def damage_only_gguf(folder: Path) -> str:
    (folder / "model.safetensors").rename(folder / "model.Q8_0.gguf")
    return "give the GGUF file itself"


def damage_nothing(folder: Path) -> str:
    (folder / "model.safetensors").unlink()
    return "neither model.safetensors nor model.safetensors.index.json"


def damage_missing_tensor(folder: Path) -> str:
    edit_tensors(folder, lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"))
    return "lacks the tensor model.layers.1.mlp.up_proj.weight:"


def damage_missing_head(folder: Path) -> str:
    edit_tensors(folder, lambda tensors: tensors.pop("lm_head.weight"))
    return "lacks the tensor lm_head.weight (the config says that the head is not tied"


def damage_leftover_tensor(folder: Path) -> str:
    edit_tensors(folder, lambda tensors: tensors.update({"model.layers.0.self_attn.q_proj.bias": torch.zeros(96)}))
    return "holds the tensor model.layers.0.self_attn.q_proj.bias, which the architecture"


def damage_leftover_layer(folder: Path) -> str:
    edit_config(folder, num_hidden_layers=1)
    return "and 1 more, which the architecture"


def damage_missing_layers(folder: Path) -> str:
    edit_config(folder, num_hidden_layers=3)
    return "lacks the tensors model.layers.2.input_layernorm.weight, "


def damage_missing_biases(folder: Path) -> str:
    edit_config(folder, attention_bias=True)
    return "lacks the tensors model.layers.0.self_attn.q_proj.bias, "


def damage_shape(folder: Path) -> str:
    edit_config(folder, intermediate_size=128)
    return "model.layers.0.mlp.gate_proj.weight has shape [160, 96], but the config asks for [128, 96]"


def damage_head_dim(folder: Path) -> str:
    edit_config(folder, head_dim=32)
    return "model.layers.0.self_attn.q_proj.weight has shape [96, 96], but the config asks for [128, 96]"


def damage_dtype(folder: Path) -> str:
    edit_tensors(folder, lambda tensors: tensors.update({"model.norm.weight": torch.ones(96, dtype=torch.float64)}))
    return "model.norm.weight has dtype F64, which is not supported"


def damage_tied_but_different_head(folder: Path) -> str:
    edit_config(folder, tie_word_embeddings=True)
    return "lm_head.weight differs from model.embed_tokens.weight"


DAMAGES = [value for name, value in list(globals().items()) if name.startswith("damage_")]


@pytest.mark.parametrize("damage", DAMAGES, ids=[damage.__name__.removeprefix("damage_") for damage in DAMAGES])
def test_damage_is_named(damage: Callable[[Path], str], folder: Path) -> None:
    message = damage(folder)
    assert message in refusal(folder)


def test_tied_model_may_hold_a_copy_of_its_head(folder: Path) -> None:
    edit_config(folder, tie_word_embeddings=True)
    edit_tensors(
        folder, lambda tensors: tensors.update({"lm_head.weight": tensors["model.embed_tokens.weight"].clone()})
    )
    weights, _, notes = load(folder)
    assert "lm_head.weight" not in weights
    assert "lm_head.weight is a copy" in notes


def test_tied_model_may_hold_only_its_head(folder: Path) -> None:
    edit_config(folder, tie_word_embeddings=True)
    head = load_file(folder / "model.safetensors")["lm_head.weight"]
    edit_tensors(folder, lambda tensors: tensors.pop("model.embed_tokens.weight"))
    weights, _, notes = load(folder)
    assert torch.equal(weights["model.embed_tokens.weight"], head)
    assert "is read from lm_head.weight" in notes


def test_untied_head_is_never_the_embedding(folder: Path) -> None:
    weights, _, _ = load(folder)
    assert not torch.equal(weights["lm_head.weight"], weights["model.embed_tokens.weight"])


def test_saved_rotary_buffers_are_ignored(folder: Path) -> None:
    buffers = {f"model.layers.{layer}.self_attn.rotary_emb.inv_freq": torch.ones(12) for layer in range(2)}
    edit_tensors(folder, lambda tensors: tensors.update(buffers))
    weights, _, _ = load(folder)
    assert not set(buffers) & set(weights)
