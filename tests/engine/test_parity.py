"""PARITY: the engine against transformers on the same weights.

The yardstick is transformers itself in fp64: our fp32 error against it may be at most twice transformers' own
fp32 error, for both kernel sets. A misread config (window, rope scaling, bias, head size, tie) is orders of
magnitude outside that bound.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from detharness.targets.engine import EngineTarget
from detharness.targets.protocol import Arrival, EngineConfig, SamplingParams

ODD_CONFIGS = {
    "llama": ("llama", {}),
    "llama tied": ("llama", {"tie_word_embeddings": True}),
    "llama linear rope": ("llama", {"rope_scaling": {"type": "linear", "factor": 4.0}}),
    "llama3 rope": (
        "llama",
        {
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
    ),
    "llama yarn rope": (
        "llama",
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}},
    ),
    "mistral window": ("mistral", {}),
    "mistral head_dim": ("mistral", {"head_dim": 40, "sliding_window": None}),
    "qwen2": ("qwen2", {"sliding_window": 16}),
    "qwen2 window": (
        "qwen2",
        {
            "use_sliding_window": True,
            "sliding_window": 16,
            "max_window_layers": 1,
            "layer_types": ["full_attention", "sliding_attention"],
        },
    ),
    "qwen3": ("qwen3", {}),
}


def transformers_logits(folder: Path, tokens: tuple[int, ...], dtype: torch.dtype) -> np.ndarray:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()
    with torch.inference_mode():
        return model(torch.tensor([tokens])).logits[0].double().numpy()


def engine_logits(target: EngineTarget, tokens: tuple[int, ...]) -> np.ndarray:
    """Logits at every position, each from the last row of a prefix played as a schedule of its own."""
    params = SamplingParams(max_tokens=1, ignore_eos=True)
    arrivals = [Arrival(0, str(n), tokens[:n], params, capture_logits=True) for n in range(1, len(tokens) + 1)]
    played = target.play(arrivals, EngineConfig(dtype=target.dtype, num_blocks=400))
    return np.concatenate([done.logits for done in played.completions.values()]).astype(np.float64)


@pytest.mark.parametrize("name", ODD_CONFIGS)
def test_error_against_fp64_is_at_most_twice_that_of_transformers(tiny_folder, name):
    family, overrides = ODD_CONFIGS[name]
    folder = tiny_folder(family, **overrides)
    tokens = tuple(int(t) for t in np.random.default_rng(1).integers(0, 256, 60))
    truth = transformers_logits(folder, tokens, torch.float64)
    theirs = np.abs(transformers_logits(folder, tokens, torch.float32) - truth)
    for kernels, backend in (("torch", "auto"), ("invariant", "cpp"), ("invariant", "pytorch")):
        target = EngineTarget(str(folder), kernels, "fp32", kernel_backend=backend)
        ours = np.abs(engine_logits(target, tokens) - truth)
        assert np.sqrt((ours**2).mean()) <= 2 * np.sqrt((theirs**2).mean()), (kernels, backend)
        assert ours.max() <= 2 * theirs.max(), (kernels, backend)


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_in_bf16_the_error_is_at_most_twice_that_of_transformers_in_bf16(tiny_folder, family):
    from transformers import AutoModelForCausalLM

    folder = tiny_folder(family)
    tokens = tuple(int(t) for t in np.random.default_rng(2).integers(0, 256, 40))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    with torch.inference_mode():
        theirs = model(torch.tensor([tokens])).logits[0].double().numpy()
        truth = model.double()(torch.tensor([tokens])).logits[0].numpy()  # The same weights, rounded to bf16.
    theirs = np.abs(theirs - truth)
    for kernels in ("torch", "invariant"):
        ours = np.abs(engine_logits(EngineTarget(str(folder), kernels, "bf16"), tokens) - truth)
        assert np.sqrt((ours**2).mean()) <= 2 * np.sqrt((theirs**2).mean()), kernels
        assert ours.max() <= 2 * theirs.max(), kernels


@pytest.fixture(scope="module")
def smollm2_folder(tmp_path_factory) -> Path:
    """SmolLM2's dequantised weights as a folder that transformers can read."""
    from safetensors.torch import save_file

    from detharness.checkpoints.checkpoint import load_checkpoint

    checkpoint = load_checkpoint("smollm2-135m", dtype=torch.float32)
    config = checkpoint.config
    folder = tmp_path_factory.mktemp("smollm2")
    (folder / "config.json").write_text(
        json.dumps(
            {
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
            }
        )
    )
    save_file(
        {name: checkpoint.weights[name].clone() for name in checkpoint.weights},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    return folder


PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "def fibonacci(n):",
    "Water boils at a temperature of",
    "List three uses of a paperclip:",
    "The opposite of hot is",
    "In 1969, the first humans",
    "My favourite recipe for bread starts with",
]


def test_smollm2_greedy_text_equals_transformers_and_the_error_bound_holds(smollm2_folder):
    from transformers import AutoModelForCausalLM

    target = EngineTarget("smollm2-135m", "invariant", "fp32")
    params = SamplingParams(max_tokens=64, ignore_eos=True)
    prompts = [target.tokenize(prompt) for prompt in PROMPTS]
    played = target.play(
        [Arrival(0, str(i), tokens, params) for i, tokens in enumerate(prompts)], EngineConfig(num_blocks=128)
    )
    model = AutoModelForCausalLM.from_pretrained(smollm2_folder, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None  # Go on after an end token, as the engine is asked to.
    longest = max(len(tokens) for tokens in prompts)
    padded = [[0] * (longest - len(tokens)) + list(tokens) for tokens in prompts]
    mask = [[0] * (longest - len(tokens)) + [1] * len(tokens) for tokens in prompts]
    with torch.inference_mode():
        replies = model.generate(
            torch.tensor(padded),
            attention_mask=torch.tensor(mask),
            do_sample=False,
            max_new_tokens=64,
            pad_token_id=0,
        )[:, longest:].tolist()
    for index, reply in enumerate(replies):
        assert played.completions[str(index), 0].token_ids == tuple(reply), PROMPTS[index]

    text = prompts[1] + played.completions["1", 0].token_ids[:32]
    truth = transformers_logits(smollm2_folder, text, torch.float64)
    theirs = np.abs(transformers_logits(smollm2_folder, text, torch.float32) - truth)
    ours = np.abs(engine_logits(target, text) - truth)
    assert np.sqrt((ours**2).mean()) <= 2 * np.sqrt((theirs**2).mean())
    assert ours.max() <= 2 * theirs.max()
