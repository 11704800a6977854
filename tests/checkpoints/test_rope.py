"""Inverse frequencies: correctly rounded powers, and transformers' table up to the error of its ``pow``."""

from __future__ import annotations

import hashlib
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from detharness.checkpoints.config import ModelConfig, RopeConfig
from detharness.checkpoints.config_json import parse_config
from detharness.checkpoints.rope import inverse_frequencies

LLAMA_31 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
CASES: dict[str, tuple[float, int, dict[str, Any]]] = {
    "llama2": (1e4, 128, {"rope_type": "default"}),
    "smollm2": (1e5, 64, {"rope_type": "default"}),
    "mistral": (1e6, 128, {"rope_type": "default"}),
    "head_80": (1e6, 80, {"rope_type": "default"}),
    "head_2": (1e4, 2, {"rope_type": "default"}),
    "linear": (1e4, 128, {"rope_type": "linear", "factor": 2.5}),
    "llama31": (5e5, 128, LLAMA_31),
    "llama32": (5e5, 64, {**LLAMA_31, "factor": 32.0}),
    "yarn": (1e6, 128, YARN),
    "yarn_odd": (1e4, 96, {**YARN, "factor": 16.0, "beta_fast": 24, "beta_slow": 2, "truncate": False}),
    "yarn_mscale": (1e4, 64, {**YARN, "factor": 40.0, "mscale": 1.0, "mscale_all_dim": 0.7}),
    "yarn_attention_factor": (1e6, 128, {**YARN, "attention_factor": 1.4159}),
    "yarn_shrinks": (1e6, 128, {**YARN, "factor": 1.0}),
}


def both(name: str) -> tuple[torch.Tensor, float, torch.Tensor, float]:
    theta, head_dim, rope = CASES[name]
    raw = {
        "model_type": "llama",
        "hidden_size": 4 * head_dim,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "head_dim": head_dim,
        "vocab_size": 8,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_theta": theta, **rope},
    }
    ours, scale = inverse_frequencies(parse_config(raw, "config.json")[0])
    theirs_config = LlamaConfig(**{key: value for key, value in raw.items() if key != "model_type"})
    if rope["rope_type"] == "default":
        theirs, theirs_scale = LlamaRotaryEmbedding.compute_default_rope_parameters(theirs_config)
    else:
        theirs, theirs_scale = ROPE_INIT_FUNCTIONS[rope["rope_type"]](theirs_config)
    return ours, scale, theirs, theirs_scale


def ulps(first: torch.Tensor, second: torch.Tensor) -> int:
    return int((first.view(torch.int32) - second.view(torch.int32)).abs().max())


@pytest.mark.parametrize("name", CASES)
def test_table_is_that_of_transformers(name: str) -> None:
    ours, scale, theirs, theirs_scale = both(name)
    assert ours.dtype == torch.float32
    assert ours.shape == theirs.shape
    # One ulp is what torch's vectorised pow may be off; ours is correctly rounded.
    assert ulps(ours, theirs) <= 1
    # transformers takes math.log, which may be off by one ulp of fp64.
    assert scale == pytest.approx(theirs_scale, rel=4e-16, abs=0)


@pytest.mark.parametrize(
    ("name", "digest"),
    [
        ("smollm2", "4dcfda84ce763abe"),
        ("head_80", "050e37c1a4829c5c"),
        ("llama31", "4ae2280930816279"),
        ("yarn", "fc3a149b70f4f0c5"),
    ],
)
def test_table_has_the_same_bits_on_every_machine(name: str, digest: str) -> None:
    """Recorded once: a machine where this fails computes another table, and would give other logits."""
    assert hashlib.sha256(both(name)[0].numpy().astype("<f4").tobytes()).hexdigest()[:16] == digest


def test_kinds_of_scaling_give_different_tables() -> None:
    tables = [both(name)[0] for name in ("llama2", "linear", "llama31", "yarn")]
    assert all(not torch.equal(a, b) for i, a in enumerate(tables) for b in tables[:i])
    assert both("yarn")[1] != 1.0


@pytest.mark.parametrize(("theta", "head_dim"), [(1e4, 128), (1e5, 64), (5e5, 80), (1e6, 96)])
def test_powers_are_correctly_rounded(theta: float, head_dim: int) -> None:
    """No fp32 neighbour of the reciprocal is nearer to the power: checked without logarithms, in exact fractions.

    The exponent is an fp32 fraction n / 2**k, so p = theta ** (n / 2**k) means p ** (2**k) = theta ** n; for
    k <= 7 both sides are computed exactly at the midpoints around the fp32 value.
    """
    frequencies = inverse_frequencies(plain_config(theta, head_dim))[0].numpy()
    checked = 0
    for index, frequency in enumerate(frequencies):
        exponent = Fraction(float(np.float32(2 * index) / np.float32(head_dim)))
        if exponent.denominator > 128:
            continue
        base = Fraction(float(np.float32(theta))) ** exponent.numerator

        def below(value: Fraction, base: Fraction = base, exponent: Fraction = exponent) -> bool:
            return value**exponent.denominator <= base

        candidates = [np.float32(v) for v in _around(np.float32(1) / frequency) if np.float32(1) / v == frequency]
        assert any(
            below((Fraction(float(v)) + Fraction(float(np.nextafter(v, np.float32(0))))) / 2)
            and not below((Fraction(float(v)) + Fraction(float(np.nextafter(v, np.float32(np.inf))))) / 2)
            for v in candidates
        )
        checked += 1
    assert checked >= 2


def _around(value: np.float32) -> list[np.float32]:
    up, down = value, value
    found = [value]
    for _ in range(2):
        up, down = np.nextafter(up, np.float32(np.inf)), np.nextafter(down, np.float32(0))
        found += [up, down]
    return found


def plain_config(theta: float, head_dim: int) -> ModelConfig:
    return ModelConfig(
        family="llama",
        num_layers=1,
        hidden_size=head_dim,
        intermediate_size=8,
        num_heads=1,
        num_kv_heads=1,
        head_dim=head_dim,
        vocab_size=8,
        max_positions=16,
        rms_eps=1e-5,
        tie_embeddings=True,
        qkv_bias=False,
        output_bias=False,
        mlp_bias=False,
        qk_norm=False,
        windows=(None,),
        rope=RopeConfig(theta=theta),
    )
