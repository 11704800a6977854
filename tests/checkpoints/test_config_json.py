"""``config.json``: every spelling that real folders use, and everything that must be refused by name."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

from detharness.checkpoints.config import ModelConfig
from detharness.checkpoints.config_json import parse_config
from detharness.errors import CheckpointError

ABSENT = object()
CONFIGS = {"llama": LlamaConfig, "mistral": MistralConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config}


def raw(family: str = "llama", **changes: Any) -> dict[str, Any]:
    values = {
        "model_type": family,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 100,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "tie_word_embeddings": True,
        "sliding_window": None,
        **changes,
    }
    return {key: value for key, value in values.items() if value is not ABSENT}


def parsed(family: str = "llama", **changes: Any) -> ModelConfig:
    return parse_config(raw(family, **changes), "config.json")[0]


def notes(family: str = "llama", **changes: Any) -> str:
    return "\n".join(parse_config(raw(family, **changes), "config.json")[1])


def refusal(family: str = "llama", **changes: Any) -> str:
    with pytest.raises(CheckpointError) as caught:
        parsed(family, **changes)
    assert str(caught.value).startswith("config.json")
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("family", CONFIGS)
def test_what_transformers_writes_is_read_back(family: str) -> None:
    theirs = CONFIGS[family](
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=100,
        max_position_embeddings=512,
        rope_parameters={"rope_type": "default", "rope_theta": 12345.0},
    )
    config, _ = parse_config(theirs.to_dict(), "config.json")
    assert (config.family, config.rope.theta, config.rope.kind) == (family, 12345.0, "default")
    assert (config.num_layers, config.num_heads, config.num_kv_heads) == (3, 4, 2)
    assert config.head_dim == theirs.to_dict().get("head_dim", 16)
    assert config.rms_eps == theirs.rms_norm_eps
    assert config.tie_embeddings is False
    assert config.windows == ((4096,) * 3 if family == "mistral" else (None,) * 3)
    assert (config.qkv_bias, config.output_bias, config.mlp_bias) == (family == "qwen2", False, False)
    assert config.qk_norm is (family == "qwen3")


LINEAR = {"factor": 2.0}


@pytest.mark.parametrize(
    ("scaling", "kind"),
    [
        (None, "default"),
        ({"type": None}, "default"),
        ({"rope_type": None, "type": None, "factor": 2.0}, "default"),
        ({"rope_type": "default"}, "default"),
        ({"type": "linear", **LINEAR}, "linear"),
        ({"rope_type": "linear", **LINEAR}, "linear"),
        ({"rope_type": "linear", "type": "linear", **LINEAR}, "linear"),
        ({"rope_type": None, "type": "linear", **LINEAR}, "linear"),
    ],
)
@pytest.mark.parametrize("place", ["rope_scaling", "rope_parameters"])
def test_kind_of_scaling_is_read_in_every_spelling(scaling: Any, kind: str, place: str) -> None:
    assert parsed(**{place: scaling}).rope.kind == kind


def test_theta_is_read_from_both_places() -> None:
    assert parsed(rope_theta=5e5).rope.theta == 5e5
    assert parsed(rope_theta=ABSENT, rope_parameters={"rope_theta": 7e5, "rope_type": "default"}).rope.theta == 7e5
    assert parsed(rope_theta=7e5, rope_parameters={"rope_theta": 7e5}).rope.theta == 7e5
    both = {
        "rope_parameters": {"rope_theta": 1e6, "rope_type": "linear", **LINEAR},
        "rope_scaling": {"type": "linear", **LINEAR},
    }
    assert parsed(**both).rope.factor == 2.0


def test_settings_nested_by_layer_type() -> None:
    full = {"rope_type": "linear", "rope_theta": 3e4, "factor": 2.0}
    other = {"rope_type": "default", "rope_theta": 1e4}
    nested = {"full_attention": full, "sliding_attention": other}
    assert parsed("qwen3", rope_theta=ABSENT, rope_parameters=nested).rope.theta == 3e4
    sliding = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2}
    assert "differ between layer types" in refusal("qwen3", rope_theta=ABSENT, rope_parameters=nested, **sliding)
    assert "'sliding_attention'" in refusal(
        "qwen3", rope_theta=ABSENT, rope_parameters={"full_attention": full, "sliding_attention": None}, **sliding
    )
    same = {"full_attention": full, "sliding_attention": full}
    assert parsed("qwen3", rope_theta=ABSENT, rope_parameters=same, **sliding).rope.factor == 2.0


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope_theta": ABSENT}, "rope_theta is missing"),
        ({"rope_theta": None}, "rope_theta is missing"),
        ({"rope_theta": ABSENT, "rope_parameters": {"rope_type": "default"}}, "rope_theta is missing"),
        ({"rope_theta": -1}, "rope_theta"),
        ({"rope_theta": "1e6"}, "rope_theta"),
        ({"rope_theta": 1e4, "rope_parameters": {"rope_theta": 1e6}}, "rope_theta"),
        ({"rope_scaling": {"type": "linear", "rope_type": "yarn", "factor": 2.0}}, "keep one"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "'dynamic'"),
        ({"rope_scaling": {"rope_type": "longrope", "short_factor": [1], "long_factor": [2]}}, "'longrope'"),
        ({"rope_scaling": {"type": "su"}}, "'su'"),
        ({"rope_scaling": {"type": "mrope", "mrope_section": [1, 2]}}, "'mrope'"),
        ({"rope_scaling": {"factor": 2.0}}, "no rope_type"),
        ({"rope_scaling": {"type": "linear"}}, "factor"),
        ({"rope_scaling": {"type": "linear", "factor": 0}}, "factor"),
        ({"rope_scaling": {"type": "linear", "factor": True}}, "factor"),
        ({"rope_scaling": [1]}, "rope_scaling"),
        ({"rope_scaling": {"type": "yarn", "factor": 2.0, "attn_factor": 1.0}}, "'attn_factor'"),
        ({"rope_scaling": {"type": "yarn"}}, "factor"),
        ({"rope_scaling": {"type": "yarn", "factor": 2.0, "truncate": "no"}}, "truncate"),
        ({"rope_scaling": {"type": "yarn", "factor": 2.0}, "rope_theta": 1}, "above 1"),
        ({"rope_scaling": {**LLAMA3, "low_freq_factor": None}}, "low_freq_factor"),
        ({"rope_scaling": {**LLAMA3, "low_freq_factor": 4.0}}, "must differ"),
        ({"rope_scaling": {**LLAMA3, "original_max_position_embeddings": 1.5}}, "original_max"),
        (
            {"rope_scaling": LINEAR | {"type": "linear"}, "rope_parameters": {"type": "linear", "factor": 4.0}},
            "'factor'",
        ),
        ({"rope_scaling": LINEAR | {"type": "linear"}, "rope_parameters": {"rope_type": "default"}}, "'factor'"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({"rope_interleaved": True}, "rope_interleaved"),
    ],
)
def test_rope_is_refused_rather_than_guessed(changes: dict[str, Any], message: str) -> None:
    assert message in refusal(**changes)


def test_yarn_fields_are_all_read() -> None:
    scaling = {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "attention_factor": 1.4159,
        "beta_fast": 24.0,
        "beta_slow": 2.0,
        "mscale": 0.7,
        "mscale_all_dim": 0.9,
        "truncate": False,
    }
    rope = parsed(rope_scaling=scaling).rope
    assert (rope.factor, rope.original_max_positions, rope.attention_factor) == (4.0, 64, 1.4159)
    assert (rope.beta_fast, rope.beta_slow, rope.truncate) == (24.0, 2.0, False)
    assert (rope.mscale, rope.mscale_all_dim) == (0.7, 0.9)


def test_yarn_without_original_length_says_so_and_never_multiplies() -> None:
    scaling = {"type": "yarn", "factor": 4.0}
    config = parsed(rope_scaling=scaling)
    assert (config.rope.original_max_positions, config.max_positions) == (256, 256)
    assert "is taken for it" in notes(rope_scaling=scaling)


@pytest.mark.parametrize(("max_positions", "context"), [(64, 256), (256, 256), (1024, 1024)])
def test_yarn_extends_the_stated_original_length_once(max_positions: int, context: int) -> None:
    scaling = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    assert parsed(rope_scaling=scaling, max_position_embeddings=max_positions).max_positions == context


def test_yarn_factor_follows_from_the_lengths() -> None:
    rope = parsed(rope_scaling={"type": "yarn", "original_max_position_embeddings": 64}).rope
    assert rope.factor == 4.0


@pytest.mark.parametrize(
    ("family", "changes", "head_dim"),
    [
        ("llama", {}, 16),
        ("llama", {"head_dim": None}, 16),
        ("mistral", {"head_dim": 32}, 32),
        ("qwen3", {"head_dim": 8}, 8),
        ("qwen3", {}, 128),
        ("llama", {"hidden_size": 66, "head_dim": 16}, 16),
    ],
)
def test_head_dim_is_the_given_one(family: str, changes: dict[str, Any], head_dim: int) -> None:
    assert parsed(family, **changes).head_dim == head_dim


def test_key_value_heads_default_to_heads_where_llama_1_left_them_out() -> None:
    assert parsed(num_key_value_heads=ABSENT).num_kv_heads == 4
    assert parsed("mistral", num_key_value_heads=None).num_kv_heads == 4
    assert "num_key_value_heads" in refusal("mistral", num_key_value_heads=ABSENT)


@pytest.mark.parametrize("family", CONFIGS)
def test_tie_flag_is_resolved_and_recorded(family: str) -> None:
    assert parsed(family, tie_word_embeddings=True).tie_embeddings is True
    assert parsed(family, tie_word_embeddings=False).tie_embeddings is False
    assert parsed(family, tie_word_embeddings=ABSENT).tie_embeddings is CONFIGS[family]().tie_word_embeddings
    assert f"the {family} default" in notes(family, tie_word_embeddings=ABSENT)
    nested = {"tie_word_embeddings": ABSENT, "text_config": {"tie_word_embeddings": True}}
    assert parsed(family, **nested).tie_embeddings is True
    assert "text_config" in notes(family, **nested)
    assert "differs" in refusal(family, tie_word_embeddings=False, text_config={"tie_word_embeddings": True})


@pytest.mark.parametrize(
    ("family", "changes", "windows"),
    [
        ("qwen2", {"sliding_window": 32, "use_sliding_window": False}, (None,) * 4),
        ("qwen2", {"sliding_window": 32}, (None,) * 4),
        ("qwen2", {"sliding_window": 32, "use_sliding_window": True, "max_window_layers": 3}, (None, None, None, 32)),
        ("qwen3", {"sliding_window": 32, "use_sliding_window": True, "max_window_layers": 0}, (32,) * 4),
        ("qwen2", {"sliding_window": 32, "use_sliding_window": True}, (None,) * 4),
        (
            "qwen3",
            {
                "sliding_window": 32,
                "use_sliding_window": True,
                "layer_types": ["full_attention", "sliding_attention"] * 2,
            },
            (None, 32, None, 32),
        ),
        ("qwen2", {"sliding_window": None, "use_sliding_window": True, "max_window_layers": 0}, (None,) * 4),
        ("mistral", {"sliding_window": 48}, (48,) * 4),
        ("mistral", {"sliding_window": None}, (None,) * 4),
        ("mistral", {"sliding_window": ABSENT}, (4096,) * 4),
        ("llama", {"sliding_window": 48}, (None,) * 4),
    ],
)
def test_windows(family: str, changes: dict[str, Any], windows: tuple[int | None, ...]) -> None:
    assert parsed(family, **changes).windows == windows


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("qwen2", {"sliding_window": 32, "layer_types": ["sliding_attention"] * 4}),
        ("mistral", {"sliding_window": 32, "layer_types": ["full_attention"] * 4}),
        ("llama", {"layer_types": ["sliding_attention"] * 4}),
        ("qwen3", {"layer_types": ["full_attention"]}),
        ("qwen3", {"layer_types": ["chunked_attention"] * 4}),
        ("mistral", {"sliding_window": 0}),
        ("qwen2", {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": -1}),
        ("qwen2", {"use_sliding_window": "yes"}),
    ],
)
def test_contradicting_windows_are_refused(family: str, changes: dict[str, Any]) -> None:
    refusal(family, **changes)


@pytest.mark.parametrize(
    ("family", "biases"),
    [
        ("llama", (True, True, True)),
        ("mistral", (True, True, True)),
        ("qwen2", (True, False, True)),
        ("qwen3", (True, True, True)),
    ],
)
def test_bias_flags(family: str, biases: tuple[bool, bool, bool]) -> None:
    config = parsed(family, attention_bias=True, mlp_bias=True)
    assert (config.qkv_bias, config.output_bias, config.mlp_bias) == biases


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gemma3"}, "'gemma3'"),
        ({"model_type": ABSENT}, "model_type is missing"),
        ({"model_type": ABSENT, "peft_type": "LORA"}, "adapter"),
        ({"quantization_config": {"quant_method": "awq"}}, "awq"),
        ({"quantization_config": {"quant_method": "fp8"}}, "fp8"),
        ({"quantization_config": "gptq"}, "quantised"),
        ({"hidden_act": "gelu"}, "'gelu'"),
        ({"hidden_size": ABSENT}, "hidden_size is missing"),
        ({"hidden_size": 0}, "hidden_size"),
        ({"vocab_size": "100"}, "vocab_size"),
        ({"num_hidden_layers": True}, "num_hidden_layers"),
        ({"rms_norm_eps": ABSENT}, "rms_norm_eps is missing"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps"),
        ({"num_key_value_heads": 3}, "shared evenly"),
        ({"num_attention_heads": 6, "num_key_value_heads": 3}, "head_dim"),
        ({"head_dim": 7}, "odd"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
    ],
)
def test_refusals_name_the_field(changes: dict[str, Any], message: str) -> None:
    assert message in refusal(**changes)


WEIRD: list[Any] = [None, True, -1, 0, 1, 2.5, float("inf"), "x", "", [], [1], {}, {"a": 1}, [None], 10**400]
KEYS = [*raw(), "rope_scaling", "rope_parameters", "layer_types", "head_dim", "quantization_config", "hidden_act"]
KEYS += [
    "text_config",
    "use_sliding_window",
    "max_window_layers",
    "attention_bias",
    "mlp_bias",
    "partial_rotary_factor",
]
YARN_KEYS = ["type", "rope_type", "factor", "original_max_position_embeddings", "attention_factor", "beta_fast"]
YARN_KEYS += ["beta_slow", "mscale", "mscale_all_dim", "truncate", "rope_theta", "full_attention", "finetuned"]


@pytest.mark.parametrize("family", CONFIGS)
def test_no_value_of_another_type_escapes_as_another_error(family: str) -> None:
    changes = [{key: value} for key in KEYS for value in WEIRD]
    yarn = {"type": "yarn", "factor": 2.0}
    changes += [{"rope_scaling": {**yarn, key: value}} for key in YARN_KEYS for value in WEIRD]
    changes += [{"use_sliding_window": True, **change} for change in changes]
    refused = 0
    for change in changes:
        try:
            parsed(family, **change)
        except CheckpointError:
            refused += 1
    assert refused > len(changes) / 3
