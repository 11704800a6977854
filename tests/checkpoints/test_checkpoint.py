"""``load_checkpoint`` end to end: SmolLM2, tiny folders and GGUF files, a Hugging Face cache, and refusals."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

from detharness.checkpoints.checkpoint import Checkpoint, load_checkpoint
from detharness.checkpoints.gguf_file import gguf_name
from detharness.checkpoints.locate import BUILT_IN_SHA256
from detharness.errors import CheckpointError

Build = Callable[..., Path]
WriteGguf = Callable[..., Path]
REVISION = "0123456789abcdef"


@pytest.fixture
def folder(tiny_folder: Build, tmp_path: Path) -> Path:
    return shutil.copytree(tiny_folder("llama"), tmp_path / "model")


@pytest.fixture
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DETHARNESS_CACHE", str(tmp_path / "cache"))


def load(model: Path | str, dtype: torch.dtype = torch.float32) -> Checkpoint:
    return load_checkpoint(str(model), dtype=dtype)


def refusal(model: Path | str) -> str:
    with pytest.raises(CheckpointError) as caught:
        load(model)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def write_json(path: Path, **changes: Any) -> None:
    old = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**old, **changes}))


@pytest.fixture(scope="module")
def smollm2() -> Checkpoint:
    return load_checkpoint("smollm2-135m", dtype=torch.float32)


def test_smollm2_is_the_published_model(smollm2: Checkpoint) -> None:
    assert (smollm2.source, smollm2.kind, smollm2.digest) == ("smollm2-135m", "gguf", BUILT_IN_SHA256)
    config = smollm2.config
    assert (config.num_layers, config.hidden_size, config.intermediate_size) == (30, 576, 1536)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (9, 3, 64)
    assert (config.vocab_size, config.max_positions, config.rope.theta) == (49152, 8192, 1e5)
    assert config.tie_embeddings
    assert config.rms_eps == float(np.float32(1e-5))
    assert smollm2.eos_token_ids == (2,)
    assert smollm2.chat_template is not None
    assert sum(tensor.numel() for tensor in smollm2.weights.values()) == 134_515_008


def test_smollm2_weights_make_a_model_that_knows_something(smollm2: Checkpoint) -> None:
    """Rows of Q and K in the wrong order, or a wrong name, would give noise here."""
    config = LlamaConfig(
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        vocab_size=49152,
        rms_norm_eps=smollm2.config.rms_eps,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": smollm2.config.rope.theta},
    )
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    weights = dict(smollm2.weights)
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    model.load_state_dict(weights, assign=True)
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    ids = list(smollm2.tokenizer.encode("The capital of France is"))
    with torch.no_grad():
        best = int(model(torch.tensor([ids])).logits[0, -1].argmax())
    assert smollm2.tokenizer.decode([best]) == " Paris"


def test_smollm2_loads_warm_in_five_seconds(smollm2: Checkpoint) -> None:
    start = time.process_time()  # Processor time: what other processes do on this machine must not matter.
    again = load_checkpoint("smollm2-135m", dtype=torch.float32)
    assert time.process_time() - start < 5
    assert torch.equal(again.weights["model.norm.weight"], smollm2.weights["model.norm.weight"])


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_tiny_folders_of_every_family(family: str, tiny_folder: Build) -> None:
    path = tiny_folder(family)
    checkpoint = load(path)
    assert (checkpoint.source, checkpoint.kind, checkpoint.config.family) == (str(path), "safetensors", family)
    stored = load_file(path / "model.safetensors")
    assert all(torch.equal(checkpoint.weights[name], tensor) for name, tensor in stored.items())
    assert checkpoint.eos_token_ids == (256,)
    assert checkpoint.chat_template is None
    assert "7 padding rows of the vocabulary are never sampled" in checkpoint.notes
    assert load(path, torch.bfloat16).weights["model.norm.weight"].dtype == torch.bfloat16


@pytest.mark.usefixtures("_own_cache")
def test_gguf_gives_the_same_model_as_the_folder_it_came_from(
    tiny_folder: Build, write_gguf: WriteGguf, tmp_path: Path
) -> None:
    folder = load(tiny_folder("qwen2"))
    config = folder.config
    metadata = {
        "qwen2.embedding_length": config.hidden_size,
        "qwen2.feed_forward_length": config.intermediate_size,
    }
    tensors = {
        gguf_name(name): (tensor.numpy(), gguf.GGMLQuantizationType.F32) for name, tensor in folder.weights.items()
    }
    path = write_gguf(tmp_path / "m.gguf", tensors, "qwen2", metadata)
    for _ in range(2):  # The second time from the cache.
        file = load(path)
        assert list(file.weights) == list(folder.weights)
        assert all(torch.equal(file.weights[name], tensor) for name, tensor in folder.weights.items())
    assert file.config == type(config)(**{**vars(config), "rms_eps": float(np.float32(config.rms_eps))})
    assert file.eos_token_ids == (257,)
    assert len(list((tmp_path / "cache" / "weights").iterdir())) == 1


@pytest.mark.usefixtures("_own_cache")
def test_gguf_end_tokens_are_united(tiny_folder: Build, write_gguf: WriteGguf, tmp_path: Path) -> None:
    folder = load(tiny_folder("qwen3"))
    tensors = {
        gguf_name(name): (tensor.numpy(), gguf.GGMLQuantizationType.F32) for name, tensor in folder.weights.items()
    }
    metadata = {
        "qwen3.embedding_length": folder.config.hidden_size,
        "qwen3.feed_forward_length": folder.config.intermediate_size,
        "qwen3.attention.key_length": folder.config.head_dim,
        "tokenizer.ggml.eot_token_id": 250,
    }
    checkpoint = load(write_gguf(tmp_path / "m.gguf", tensors, "qwen3", metadata))
    assert checkpoint.eos_token_ids == (257, 250)
    assert any("metadata eos_token_id 257; metadata eot_token_id 250" in note for note in checkpoint.notes)


def test_end_tokens_of_a_folder_are_united(folder: Path) -> None:
    write_json(folder / "generation_config.json", eos_token_id=[256, 10])
    checkpoint = load(folder)
    assert checkpoint.eos_token_ids == (256, 10)
    assert any("config.json 256; generation_config.json 256, 10" in note for note in checkpoint.notes)


def test_digest_follows_content_and_names_only(folder: Path, tmp_path: Path) -> None:
    first = load(folder).digest
    moved = shutil.copytree(folder, tmp_path / "elsewhere")
    (moved / "README.md").write_text("not content")
    assert load(moved).digest == first
    write_json(moved / "generation_config.json", eos_token_id=256)
    second = load(moved).digest
    write_json(moved / "config.json", unrelated=1)
    assert len({first, second, load(moved).digest}) == 3


@pytest.fixture
def snapshot(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The tiny folder as the Hugging Face cache stores it: blobs, and links to them."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    repository = tmp_path / "hub" / "models--org--tiny"
    snapshot = repository / "snapshots" / REVISION
    snapshot.mkdir(parents=True)
    shutil.copytree(folder, repository / "blobs")
    for path in folder.iterdir():
        (snapshot / path.name).symlink_to(Path("../../blobs") / path.name)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(f"{REVISION}\n")
    return snapshot


def test_hub_id_loads_from_the_cache(snapshot: Path, folder: Path) -> None:
    checkpoint = load("org/tiny")
    assert checkpoint.source == "org/tiny"
    assert checkpoint.digest == load(folder).digest


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_partial_snapshot_names_the_missing_file(snapshot: Path, name: str) -> None:
    (snapshot / name).unlink()
    assert name in refusal("org/tiny")


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "model.safetensors"])
def test_dangling_link_names_the_file(snapshot: Path, name: str) -> None:
    (snapshot / name).unlink(missing_ok=True)
    (snapshot / name).symlink_to(Path("../../blobs/gone"))
    assert f"{name} is a link to a file that does not exist" in refusal("org/tiny")


@pytest.mark.parametrize("keep_model", [True, False])
def test_adapter_folder_is_refused(folder: Path, keep_model: bool) -> None:
    write_json(folder / "adapter_config.json", peft_type="LORA", base_model_name_or_path="org/base")
    if not keep_model:
        (folder / "config.json").unlink()
    assert "is an adapter (adapter_config.json)" in refusal(folder)


def test_folder_with_only_a_gguf_file_points_to_it(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    assert f"give the GGUF file itself, {tmp_path / 'm.gguf'}" in refusal(tmp_path)


def test_empty_folder(tmp_path: Path) -> None:
    assert "config.json is missing" in refusal(tmp_path)


def test_tokenizer_larger_than_the_embedding_is_refused(tiny_folder: Build, folder: Path) -> None:
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    for index in range(257, 300):
        tokenizer["added_tokens"].append({**tokenizer["added_tokens"][0], "id": index, "content": f"<{index}>"})
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert "the tokenizer has 300 tokens, but the embedding only 264 rows" in refusal(folder)


def test_other_dtypes_are_refused(folder: Path) -> None:
    with pytest.raises(CheckpointError, match="use fp32 or bf16"):
        load(folder, torch.float16)


def test_the_built_in_model_must_have_its_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("detharness.checkpoints.checkpoint.file_sha256", lambda _: "0" * 64)
    assert "is not the built-in model" in refusal("smollm2-135m")
