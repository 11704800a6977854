"""GGUF files: names, row order, every supported quantisation, metadata, and damage."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Q

from detharness.checkpoints.config import ModelConfig
from detharness.checkpoints.gguf_config import parse_gguf_config
from detharness.checkpoints.gguf_file import GgufFile, canonical_name, gguf_name
from detharness.checkpoints.rope import inverse_frequencies
from detharness.checkpoints.weights import expected_shapes
from detharness.errors import CheckpointError

WriteGguf = Callable[..., Path]
Tensors = dict[str, tuple[np.ndarray, Q]]
VOCAB, HIDDEN, INNER, HEADS, KV_HEADS = 264, 256, 512, 4, 2


def shapes(arch: str = "llama", head_dim: int = 64, layers: int = 2) -> dict[str, tuple[int, ...]]:
    """GGUF names and shapes, rows first, written out here and not taken from the code under test."""
    found: dict[str, tuple[int, ...]] = {"token_embd.weight": (VOCAB, HIDDEN), "output_norm.weight": (HIDDEN,)}
    for layer in range(layers):
        blk = f"blk.{layer}."
        found |= {
            f"{blk}attn_norm.weight": (HIDDEN,),
            f"{blk}attn_q.weight": (HEADS * head_dim, HIDDEN),
            f"{blk}attn_k.weight": (KV_HEADS * head_dim, HIDDEN),
            f"{blk}attn_v.weight": (KV_HEADS * head_dim, HIDDEN),
            f"{blk}attn_output.weight": (HIDDEN, HEADS * head_dim),
            f"{blk}ffn_norm.weight": (HIDDEN,),
            f"{blk}ffn_gate.weight": (INNER, HIDDEN),
            f"{blk}ffn_up.weight": (INNER, HIDDEN),
            f"{blk}ffn_down.weight": (HIDDEN, INNER),
        }
        if arch == "qwen2":
            found |= {
                f"{blk}attn_q.bias": (HEADS * head_dim,),
                f"{blk}attn_k.bias": (KV_HEADS * head_dim,),
                f"{blk}attn_v.bias": (KV_HEADS * head_dim,),
            }
        if arch == "qwen3":
            found |= {f"{blk}attn_q_norm.weight": (head_dim,), f"{blk}attn_k_norm.weight": (head_dim,)}
    return found


def random_tensors(arch: str = "llama", **sizes: int) -> Tensors:
    generator = np.random.default_rng(0)
    return {
        name: (generator.standard_normal(shape).astype(np.float32), Q.F32)
        for name, shape in shapes(arch, **sizes).items()
    }


def open_file(path: Path, dtype: torch.dtype = torch.float32) -> tuple[ModelConfig, dict[str, torch.Tensor], str]:
    file = GgufFile(path)
    config, notes = parse_gguf_config(file.metadata, file.shapes(), file.rope_factors(), str(path))
    file.check(config)
    return config, dict(file.dequantise(config, dtype)), "\n".join(notes)


def refusal(path: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        open_file(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_names_translate_both_ways() -> None:
    assert canonical_name("blk.12.attn_q.weight") == "model.layers.12.self_attn.q_proj.weight"
    assert canonical_name("output.weight") == "lm_head.weight"
    assert canonical_name("blk.01.attn_q.weight") == "blk.01.attn_q.weight"
    assert canonical_name("blk.0.ffn_gate_exps.weight") == "blk.0.ffn_gate_exps.weight"
    for arch in ("llama", "qwen2", "qwen3"):
        for name in shapes(arch):
            assert canonical_name(name) != name
            assert gguf_name(canonical_name(name)) == name


def stored_order(values: np.ndarray, heads: int) -> np.ndarray:
    """The row order that llama.cpp's converter writes for Q and K of arch llama, row by row.

    Its rotary kernel turns rows 2i and 2i+1 of a head together; Hugging Face turns i and i + head_dim/2.
    """
    size = len(values) // heads
    rows = []
    for head in range(heads):
        for pair in range(size // 2):
            rows += [head * size + pair, head * size + pair + size // 2]
    return values[rows]


@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3"])
def test_query_and_key_rows_come_back_in_half_rotation_order(arch: str, tmp_path: Path, write_gguf: WriteGguf) -> None:
    wanted = random_tensors(arch)
    if arch == "llama":
        generator = np.random.default_rng(1)
        for layer in range(2):
            for name, rows in (("attn_q", HEADS * 64), ("attn_k", KV_HEADS * 64), ("attn_v", KV_HEADS * 64)):
                wanted[f"blk.{layer}.{name}.bias"] = (generator.standard_normal(rows).astype(np.float32), Q.F32)
    written = dict(wanted)
    if arch == "llama":
        for name, (values, kind) in wanted.items():
            if re.search(r"attn_[qk]\.", name):
                written[name] = (stored_order(values, HEADS if "attn_q" in name else KV_HEADS), kind)
    config, tensors, notes = open_file(write_gguf(tmp_path / "m.gguf", written, arch))
    assert config.family == arch
    assert (config.qkv_bias, config.qk_norm) == (arch != "qwen3", arch == "qwen3")
    assert list(tensors) == list(expected_shapes(config))
    assert len(tensors) == len(wanted)
    for name, (values, _) in wanted.items():
        assert torch.equal(tensors[canonical_name(name)], torch.from_numpy(values)), name
    assert config.tie_embeddings
    assert "so the head is the embedding" in notes


def float16(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Block scales: moderate fp16 numbers as bytes, so that no block is infinite."""
    return generator.uniform(0.001, 2, shape).astype(np.float16).view(np.uint8).reshape(*shape, 2)


def k_quant_reference(blocks: np.ndarray, kind: Q) -> np.ndarray:
    """Dequantise [N, bytes] blocks of 256 values one number at a time, from the format's description."""
    out = np.zeros((len(blocks), 256), np.float32)
    for n, block in enumerate(blocks):
        if kind == Q.Q6_K:
            low, high, scales, d = (
                block[:128],
                block[128:192],
                block[192:208].view(np.int8),
                block[208:].view(np.float16),
            )
            for i in range(256):
                half, within = divmod(i, 128)
                quarter, column = divmod(within, 32)
                nibble = low[half * 64 + (quarter % 2) * 32 + column] >> (4 * (quarter // 2)) & 15
                bits = high[half * 32 + column] >> (2 * quarter) & 3
                value = np.float32(int(nibble | bits << 4) - 32)
                out[n, i] = np.float32(d[0]) * np.float32(scales[i // 16]) * value
            continue
        d, dmin = np.float32(block[:2].view(np.float16)[0]), np.float32(block[2:4].view(np.float16)[0])
        packed, rest = block[4:16], block[16:]
        high, low = (rest[:32], rest[32:]) if kind == Q.Q5_K else (None, rest)
        for i in range(256):
            group, column = divmod(i, 32)
            if group < 4:
                scale, minimum = packed[group] & 63, packed[group + 4] & 63
            else:
                scale = packed[group + 4] & 15 | packed[group - 4] >> 6 << 4
                minimum = packed[group + 4] >> 4 | packed[group] >> 6 << 4
            value = int(low[group // 2 * 32 + column] >> (4 * (group % 2)) & 15)
            if high is not None:
                value |= int(high[column] >> group & 1) << 4
            out[n, i] = d * np.float32(scale) * np.float32(value) - dmin * np.float32(minimum)
    return out


@pytest.mark.parametrize("kind", [Q.Q4_K, Q.Q5_K, Q.Q6_K])
def test_k_quants(kind: Q, tmp_path: Path, write_gguf: WriteGguf) -> None:
    """The library cannot write these blocks, so they are random bytes read by a slow reference."""
    generator = np.random.default_rng(2)
    tensors = random_tensors(layers=1)
    name = "blk.0.ffn_down.weight"
    size = gguf.GGML_QUANT_SIZES[kind][1]
    blocks = generator.integers(0, 256, (HIDDEN * INNER // 256, size), dtype=np.uint8)
    if kind == Q.Q6_K:
        blocks[:, 208:] = float16(generator, (len(blocks),))
    else:
        blocks[:, :4] = float16(generator, (len(blocks), 2)).reshape(-1, 4)
    tensors[name] = (blocks.reshape(HIDDEN, -1), kind)
    path = write_gguf(tmp_path / "m.gguf", tensors, metadata={"llama.block_count": 1})
    _, loaded, _ = open_file(path)
    checked = slice(0, len(blocks), 16)
    reference = k_quant_reference(blocks[checked], kind)
    assert np.array_equal(loaded[canonical_name(name)].numpy().reshape(-1, 256)[checked], reference)


def simple_reference(rows: np.ndarray, kind: Q) -> np.ndarray:
    """Dequantise rows of 32-value blocks one block at a time, from the format's description."""
    out = []
    for block in rows.reshape(-1, gguf.GGML_QUANT_SIZES[kind][1]):
        d = np.float32(block[:2].view(np.float16)[0])
        rest = block[2:]
        m = None
        if kind in (Q.Q4_1, Q.Q5_1):
            m, rest = np.float32(rest[:2].view(np.float16)[0]), rest[2:]
        if kind == Q.Q8_0:
            out.append(d * rest.view(np.int8).astype(np.float32))
            continue
        fifth = np.zeros(32, np.int32)
        if kind in (Q.Q5_0, Q.Q5_1):
            fifth, rest = np.unpackbits(rest[:4], bitorder="little").astype(np.int32) << 4, rest[4:]
        values = np.concatenate([rest & 15, rest >> 4]).astype(np.int32) | fifth
        if m is not None:
            out.append(d * values.astype(np.float32) + m)
        else:
            out.append(d * (values - (8 if kind == Q.Q4_0 else 16)).astype(np.float32))
    return np.concatenate(out)


@pytest.mark.parametrize("kind", [Q.F16, Q.BF16, Q.Q4_0, Q.Q4_1, Q.Q5_0, Q.Q5_1, Q.Q8_0])
def test_simple_types(kind: Q, tmp_path: Path, write_gguf: WriteGguf) -> None:
    tensors = random_tensors(layers=1)
    written = {
        name: (gguf.quantize(values, kind), kind)
        if values.ndim == 2 and not re.search("attn_[qk]", name)
        else (values, Q.F32)
        for name, (values, _) in tensors.items()
    }
    path = write_gguf(tmp_path / "m.gguf", written, metadata={"llama.block_count": 1})
    _, loaded, _ = open_file(path)
    _, rounded, _ = open_file(path, torch.bfloat16)
    for name, (data, written_kind) in written.items():
        if written_kind == Q.F32:
            continue
        if kind == Q.F16:
            reference = data.astype(np.float32)
        elif kind == Q.BF16:
            reference = (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        else:
            reference = simple_reference(data, kind)
        wanted = torch.from_numpy(reference.reshape(tensors[name][0].shape))
        assert torch.equal(loaded[canonical_name(name)], wanted)
        assert torch.equal(rounded[canonical_name(name)], wanted.to(torch.bfloat16))


def parsed(
    tmp_path: Path, write_gguf: WriteGguf, arch: str = "llama", extra: Tensors | None = None, **metadata: Any
) -> Any:
    """Config and notes of a one-layer file with the metadata ``arch.key`` = value ('__' stands for '.')."""
    values = {f"{arch}.{key.replace('__', '.')}": value for key, value in metadata.items()}
    tensors = {**random_tensors(arch, layers=1), **(extra or {})}
    path = write_gguf(tmp_path / "m.gguf", tensors, arch, {f"{arch}.block_count": 1, **values})
    config, _, notes = open_file(path)
    return config, notes


def test_key_length_wins_over_width_by_heads(tmp_path: Path, write_gguf: WriteGguf) -> None:
    lengths = {"qwen3.attention.key_length": 128, "qwen3.attention.value_length": 128}
    path = write_gguf(tmp_path / "m.gguf", random_tensors("qwen3", head_dim=128), "qwen3", lengths)
    config, tensors, _ = open_file(path)
    assert config.head_dim == 128
    assert tensors["model.layers.0.self_attn.q_proj.weight"].shape == (HEADS * 128, HIDDEN)


def test_epsilon_is_the_fp32_number(tmp_path: Path, write_gguf: WriteGguf) -> None:
    config, _ = parsed(tmp_path, write_gguf)
    assert config.rms_eps == float(np.float32(1e-5)) != 1e-5


def test_untied_head(tmp_path: Path, write_gguf: WriteGguf) -> None:
    head = np.ones((VOCAB, HIDDEN), np.float32)
    config, notes = parsed(tmp_path, write_gguf, extra={"output.weight": (head, Q.F32)})
    assert not config.tie_embeddings
    assert "so it is the head" in notes


def test_rope_scaling(tmp_path: Path, write_gguf: WriteGguf) -> None:
    config, _ = parsed(tmp_path, write_gguf, rope__scaling__type="linear", rope__scaling__factor=4.0)
    assert (config.rope.kind, config.rope.factor) == ("linear", 4.0)
    config, _ = parsed(tmp_path, write_gguf, rope__scale_linear=2.0)
    assert (config.rope.kind, config.rope.factor) == ("linear", 2.0)
    config, _ = parsed(tmp_path, write_gguf, rope__scaling__type="none", rope__scaling__factor=1.0)
    assert config.rope.kind == "default"
    yarn = {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0}
    config, notes = parsed(tmp_path, write_gguf, **yarn, rope__scaling__original_context_length=256)
    assert (config.rope.kind, config.rope.original_max_positions, config.max_positions) == ("yarn", 256, 1024)
    assert "1024 from yarn" in notes
    config, notes = parsed(tmp_path, write_gguf, **yarn, rope__scaling__yarn_beta_fast=24.0)
    assert (config.rope.original_max_positions, config.max_positions, config.rope.beta_fast) == (512, 512, 24.0)
    assert "is taken for it" in notes


def llama3_divisors(factor: float, head_dim: int = 64) -> np.ndarray:
    """What the converter stores for Llama 3.1 scaling: plain frequency over scaled frequency."""
    frequencies = 1.0 / 1e4 ** (np.arange(0, head_dim, 2) / head_dim)
    result = []
    for wavelength in 2 * np.pi / frequencies:
        smooth = min(max((8192 / wavelength - 1.0) / 3.0, 0.0), 1.0)
        result.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(result, np.float32)


def test_llama3_scaling_is_recovered_from_its_divisors(tmp_path: Path, write_gguf: WriteGguf) -> None:
    divisors = llama3_divisors(8.0)
    assert 1 < divisors.max() <= 8
    extra = {"rope_freqs.weight": (divisors, Q.F32)}
    config, notes = parsed(tmp_path, write_gguf, extra=extra)
    assert (config.rope.kind, config.rope.factor, config.rope.original_max_positions) == ("llama3", 8.0, 8192)
    assert "Llama 3.1 scaling with factor 8" in notes
    plain, _ = parsed(tmp_path, write_gguf)
    # fp32 division of fp32 divisors against fp32 arithmetic throughout: a few roundings apart.
    torch.testing.assert_close(
        inverse_frequencies(config)[0], inverse_frequencies(plain)[0] / torch.from_numpy(divisors), rtol=1e-6, atol=0
    )
    ones = {"rope_freqs.weight": (np.ones(32, np.float32), Q.F32)}
    assert parsed(tmp_path, write_gguf, extra=ones)[0].rope.kind == "default"


def test_sliding_windows(tmp_path: Path, write_gguf: WriteGguf) -> None:
    assert parsed(tmp_path, write_gguf, attention__sliding_window=64)[0].windows == (64,)
    assert parsed(tmp_path, write_gguf, attention__sliding_window=0)[0].windows == (None,)
    config, notes = parsed(tmp_path, write_gguf, "qwen2", attention__sliding_window=512)
    assert config.windows == (None,)
    assert "covers the whole context" in notes


def test_unknown_metadata_is_reported(tmp_path: Path, write_gguf: WriteGguf) -> None:
    assert "metadata not used: llama.novelty" in parsed(tmp_path, write_gguf, novelty=3)[1]


@pytest.mark.parametrize(
    ("arch", "metadata", "message"),
    [
        ("gemma3", {}, "'gemma3' is not supported"),
        ("llama", {"general.type": "adapter"}, "'adapter'"),
        ("llama", {"split.count": 3, "split.no": 0}, "one of 3 parts of a sharded GGUF"),
        ("llama", {"llama.expert_count": 8}, "llama.expert_count is 8"),
        ("llama", {"llama.attention.causal": False}, "attention.causal"),
        ("llama", {"llama.attention.scale": 0.5}, "attention.scale"),
        ("llama", {"llama.rope.freq_base": None}, "rope.freq_base is missing"),
        ("llama", {"llama.rope.dimension_count": 32}, "rope.dimension_count is 32"),
        ("llama", {"llama.attention.key_length": 64, "llama.attention.value_length": 32}, "value_length is 32"),
        ("llama", {"llama.attention.head_count_kv": [2, 1]}, "differs between layers"),
        ("llama", {"llama.attention.head_count_kv": 3}, "shared evenly"),
        ("llama", {"llama.rope.scaling.type": "longrope", "llama.rope.scaling.factor": 4.0}, "'longrope'"),
        ("llama", {"llama.rope.scaling.type": "yarn"}, "rope.scaling.factor"),
        ("llama", {"llama.rope.scaling.factor": 4.0}, "no scaling type"),
        (
            "llama",
            {
                "llama.rope.scaling.type": "yarn",
                "llama.rope.scaling.factor": 4.0,
                "llama.rope.scaling.attn_factor": 0.5,
            },
            "attn_factor",
        ),
        (
            "llama",
            {
                "llama.rope.scaling.type": "yarn",
                "llama.rope.scaling.factor": 4.0,
                "llama.rope.scaling.yarn_ext_factor": 0.5,
            },
            "yarn_ext_factor",
        ),
        ("llama", {"llama.block_count": None}, "block_count is missing"),
        ("llama", {"llama.context_length": "long"}, "context_length must be"),
        ("llama", {"llama.attention.layer_norm_rms_epsilon": None}, "layer_norm_rms_epsilon is missing"),
        ("llama", {"llama.block_count": 3}, "lacks the tensors blk.2.attn_norm.weight, "),
        ("llama", {"llama.block_count": 1}, "holds the tensors blk.1.attn_norm.weight, "),
        ("llama", {"llama.feed_forward_length": 256}, "blk.0.ffn_gate.weight has shape [512, 256]"),
        ("llama", {"llama.vocab_size": 300}, "token_embd.weight has shape [264, 256]"),
        ("qwen2", {"qwen2.attention.sliding_window": 64}, "which layers"),
    ],
)
def test_metadata_is_refused_by_name(
    arch: str, metadata: dict[str, Any], message: str, tmp_path: Path, write_gguf: WriteGguf
) -> None:
    assert message in refusal(write_gguf(tmp_path / "m.gguf", random_tensors(arch), arch, metadata))


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        ("token_embd.weight", "token_embd.weight"),
        ("blk.1.attn_q.weight", "lacks the tensor blk.1.attn_q.weight"),
        ("output_norm.weight", "lacks the tensor output_norm.weight"),
    ],
)
def test_missing_tensor_is_named(tensor: str, message: str, tmp_path: Path, write_gguf: WriteGguf) -> None:
    tensors = random_tensors()
    del tensors[tensor]
    assert message in refusal(write_gguf(tmp_path / "m.gguf", tensors))


def test_leftover_tensor_is_named(tmp_path: Path, write_gguf: WriteGguf) -> None:
    tensors = {**random_tensors(), "blk.0.attn_rot_embd.weight": (np.ones(4, np.float32), Q.F32)}
    assert "holds the tensor blk.0.attn_rot_embd.weight" in refusal(write_gguf(tmp_path / "m.gguf", tensors))


def test_unsupported_quantisation_is_named(tmp_path: Path, write_gguf: WriteGguf) -> None:
    tensors = random_tensors()
    size = gguf.GGML_QUANT_SIZES[Q.IQ4_XS][1]
    tensors["blk.0.ffn_up.weight"] = (np.zeros((INNER, size), np.uint8), Q.IQ4_XS)
    message = refusal(write_gguf(tmp_path / "m.gguf", tensors))
    assert "blk.0.ffn_up.weight has the quantisation IQ4_XS" in message


def test_foreign_rope_divisors_are_refused(tmp_path: Path, write_gguf: WriteGguf) -> None:
    for divisors in (np.linspace(1, 8, 32), np.ones(31), np.zeros(32), np.full(32, np.nan)):
        tensors = {**random_tensors(), "rope_freqs.weight": (divisors.astype(np.float32), Q.F32)}
        assert "rope_freqs.weight" in refusal(write_gguf(tmp_path / "m.gguf", tensors))


@pytest.mark.parametrize("keep", [0, 3, 4, 7, 20, 100, 3000, 20_000, -1, -40_000])
def test_a_file_cut_anywhere_is_named(keep: int, tmp_path: Path, write_gguf: WriteGguf) -> None:
    path = write_gguf(tmp_path / "m.gguf", random_tensors(layers=1), metadata={"llama.block_count": 1})
    content = path.read_bytes()
    path.write_bytes(content[:keep])
    message = refusal(path)
    assert f"{len(content[:keep])} bytes" in message


def test_a_damaged_header_never_escapes_as_another_error(tmp_path: Path, write_gguf: WriteGguf) -> None:
    """Every field of the header in turn is overwritten by 0xff: a refusal, or a file that still reads the same way."""
    path = write_gguf(tmp_path / "m.gguf", random_tensors(layers=1), metadata={"llama.block_count": 1})
    content = path.read_bytes()
    end = GgufFile(path).reader.data_offset
    refused = 0
    for offset in [*range(0, 400, 8), *range(int(end) - 800, int(end), 8)]:
        path.write_bytes(content[:offset] + b"\xff" * 8 + content[offset + 8 :])
        try:
            open_file(path)
        except CheckpointError:
            refused += 1
    assert refused > 50


def test_text_that_is_not_utf8_is_damage(tmp_path: Path, write_gguf: WriteGguf) -> None:
    path = write_gguf(tmp_path / "m.gguf", random_tensors(layers=1), metadata={"general.name": "a name of a model"})
    path.write_bytes(path.read_bytes().replace(b"a name of a model", b"a name \xff\xfe a model"))
    assert "is damaged" in refusal(path)


def test_other_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 700\n")
    assert "is a Git-LFS pointer" in refusal(path)
    path.write_bytes(b"PK\x03\x04 something else")
    assert "is not a GGUF file" in refusal(path)
    path.unlink()
    assert "is missing" in refusal(path)
