"""Checkpoints that the tests build themselves: tiny random models of every family, with a byte-level tokenizer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

pytest_plugins = ["misbehaving_server", "scripted_server", "transformers_serve"]

VOCAB = 264  # 256 bytes, one end token, and seven padded rows that must never be drawn.
EOS = 256

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", "architectures": ["LlamaForCausalLM"]},
    "mistral": {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": 21},
    "qwen2": {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "use_sliding_window": False},
    "qwen3": {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "head_dim": 32},
}


def byte_tokenizer() -> Tokenizer:
    """Every byte is a token, and ``<eos>`` ends."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: index for index, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<eos>", special=True)])
    return tokenizer


def write_tiny(folder: Path, family: str, *, seed: int = 0, **overrides: Any) -> Path:
    """Write a random two-layer checkpoint of ``family`` as a Hugging Face folder; sharp enough to have opinions."""
    config: dict[str, Any] = {
        "hidden_size": 96,
        "intermediate_size": 160,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "vocab_size": VOCAB,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
        "eos_token_id": EOS,
        "torch_dtype": "float32",
        **FAMILIES[family],
        **overrides,
    }
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int, scale: float) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) * scale

    hidden, inner = config["hidden_size"], config["intermediate_size"]
    width = config.get("head_dim") or hidden // config["num_attention_heads"]
    q_rows, kv_rows = config["num_attention_heads"] * width, config["num_key_value_heads"] * width
    weights = {
        "model.embed_tokens.weight": normal(VOCAB, hidden, scale=1.0),
        "model.norm.weight": 1 + normal(hidden, scale=0.1),
    }
    if not config["tie_word_embeddings"]:
        weights["lm_head.weight"] = normal(VOCAB, hidden, scale=0.4)
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        for name, rows, columns in (
            ("self_attn.q_proj", q_rows, hidden),
            ("self_attn.k_proj", kv_rows, hidden),
            ("self_attn.v_proj", kv_rows, hidden),
            ("self_attn.o_proj", hidden, q_rows),
            ("mlp.gate_proj", inner, hidden),
            ("mlp.up_proj", inner, hidden),
            ("mlp.down_proj", hidden, inner),
        ):
            weights[f"{prefix}{name}.weight"] = normal(rows, columns, scale=columns**-0.5)
            if family == "qwen2" and name[-6:] in ("q_proj", "k_proj", "v_proj"):
                weights[f"{prefix}{name}.bias"] = normal(rows, scale=0.5)
        if family == "qwen3":
            weights[f"{prefix}self_attn.q_norm.weight"] = 1 + normal(width, scale=0.1)
            weights[f"{prefix}self_attn.k_norm.weight"] = 1 + normal(width, scale=0.1)
        weights[f"{prefix}input_layernorm.weight"] = 1 + normal(hidden, scale=0.1)
        weights[f"{prefix}post_attention_layernorm.weight"] = 1 + normal(hidden, scale=0.1)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<eos>"}))
    return folder


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """``tiny_folder(family, **config overrides)``: the folder of a tiny checkpoint, built once per session."""
    built: dict[str, Path] = {}

    def build(family: str, **overrides: Any) -> Path:
        key = json.dumps([family, overrides], sort_keys=True)
        if key not in built:
            built[key] = write_tiny(tmp_path_factory.mktemp(family), family, **overrides)
        return built[key]

    return build


@pytest.fixture(scope="session")
def tiny_target(tiny_folder: Callable[..., Path]) -> Callable[..., Any]:
    """``tiny_target(family, kernels, dtype, backend)``: an EngineTarget on a tiny checkpoint, shared in the session."""
    from detharness.targets.engine import EngineTarget

    opened: dict[tuple[str, ...], Any] = {}

    def open_target(
        family: str = "llama", kernels: str = "invariant", dtype: str = "fp32", backend: str = "auto"
    ) -> Any:
        key = (family, kernels, dtype, backend)
        if key not in opened:
            opened[key] = EngineTarget(str(tiny_folder(family)), kernels, dtype, kernel_backend=backend)
        return opened[key]

    return open_target


@pytest.fixture(scope="session", params=["cpp", "pytorch"])
def backend(request: pytest.FixtureRequest) -> str:
    """Each backend of the invariant kernels; C++ is left out, with the reason, where it cannot be built."""
    from detharness.kernels.contract import kernel_set
    from detharness.kernels.cpu import BuildError

    try:
        kernel_set("invariant", request.param)
    except BuildError as error:
        pytest.skip(str(error))
    return str(request.param)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--schedules",
        type=int,
        default=200,
        help="how many random schedules the fuzz test plays (default 200)",
    )
