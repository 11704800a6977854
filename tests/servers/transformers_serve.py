"""A real OpenAI-compatible server that is not ours: ``transformers serve`` on SmolLM2, in a process of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from detharness.checkpoints.checkpoint import load_checkpoint

# One thread: several of OpenMP's wait for each other, and on a busy machine a token then takes many times as long.
_ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
_PATIENCE = 120.0  # Seconds until it must listen; it takes about 6 on two free cores.


@dataclass(frozen=True)
class Server:
    """``url``: its base URL. ``model``: the name of its model, which is also the model's folder."""

    url: str
    model: str


def write_smollm2(folder: Path) -> Path:
    """The packaged model as a folder: dequantised weights, tokenizer and chat template, sampling switched on."""
    checkpoint = load_checkpoint("smollm2-135m", dtype=torch.float32)
    config = checkpoint.config
    files = {
        "config.json": {
            "model_type": "llama",
            "architectures": ["LlamaForCausalLM"],
            "hidden_size": config.hidden_size,
            "intermediate_size": config.intermediate_size,
            "num_hidden_layers": config.num_layers,
            "num_attention_heads": config.num_heads,
            "num_key_value_heads": config.num_kv_heads,
            "max_position_embeddings": config.max_positions,
            "rms_norm_eps": config.rms_eps,
            "rope_theta": config.rope.theta,
            "vocab_size": config.vocab_size,
            "tie_word_embeddings": True,
            "eos_token_id": list(checkpoint.eos_token_ids),
            "dtype": "float32",
        },
        # The server takes a temperature from a request, but whether to sample from here.
        "generation_config.json": {"eos_token_id": list(checkpoint.eos_token_ids), "do_sample": True, "top_k": 0},
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"},
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    assert checkpoint.chat_template is not None
    (folder / "chat_template.jinja").write_text(checkpoint.chat_template.source)
    (folder / "tokenizer.json").write_text(checkpoint.tokenizer._backend.to_str())
    weights = {name: tensor.clone() for name, tensor in checkpoint.weights.items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="session")
def transformers_serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The server, listening; it answers one request at a time, and a seed counts only without others beside it."""
    folder = write_smollm2(tmp_path_factory.mktemp("served") / "smollm2")
    said = folder.parent / "said.txt"
    command = [sys.executable, "-m", "transformers.cli.transformers", "serve", str(folder)]
    command += ["--device", "cpu", "--dtype", "float32", "--host", "127.0.0.1", "--port", "0"]
    with said.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, **_ENVIRONMENT})
    try:
        yield Server(f"{_address(process, said)}/v1", str(folder))
    finally:
        process.terminate()
        try:
            process.wait(20.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _address(process: subprocess.Popen[bytes], said: Path) -> str:
    """The address that the server says it listens on."""
    deadline = time.monotonic() + _PATIENCE
    while process.poll() is None and time.monotonic() < deadline:
        if found := re.search(r"running on (http://127\.0\.0\.1:\d+)", said.read_text(errors="replace")):
            return found[1]
        time.sleep(0.05)
    raise AssertionError(f"transformers serve does not listen: {said.read_text(errors='replace')[-2000:]}")
