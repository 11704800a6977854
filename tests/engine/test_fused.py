"""The whole decoder in one call: the bits of its operators called one by one, and the weights held once."""

from pathlib import Path

import numpy as np
import pytest
import torch

from detharness.checkpoints.weights import InMemory, Weights
from detharness.engine.decoder import Decoder
from detharness.errors import KernelError
from detharness.kernels.contract import PRECISIONS, kernel_set
from detharness.kernels.cpu import BuildError
from detharness.targets.engine import EngineTarget
from detharness.targets.protocol import Arrival, EngineConfig, SamplingParams

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")


@pytest.fixture(scope="module", autouse=True)
def _built():
    try:
        kernel_set("invariant", "cpp")
    except BuildError as error:
        pytest.skip(str(error))


def script(dtype):
    """Long and short prompts that arrive one after another, so that steps mix chunks of prefill with decodes."""
    params = SamplingParams(max_tokens=9, ignore_eos=True)
    arrivals = [
        Arrival(step, name, tuple((31 * step + 7 * i) % 256 for i in range(length)), params, capture_logits=True)
        for step, name, length in ((0, "a", 75), (1, "b", 3), (2, "c", 1), (2, "d", 40))
    ]
    return arrivals, EngineConfig(dtype=dtype, max_step_tokens=33, num_blocks=64, page_size=5)


def logits_of(result):
    return {name: completion.logits for name, completion in result.completions.items()}


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("family", FAMILIES)
def test_one_call_gives_the_bits_of_the_operators_called_one_by_one(tiny_target, family, dtype):
    target = tiny_target(family, "invariant", dtype, "cpp")
    fused = target.play(*script(dtype))
    with target.observe(None, None, None) as seen:  # Observed steps go operator by operator.
        single = target.play(*script(dtype))
    assert len(seen) > 100
    assert {group.kind for step in fused.trace for group in step.groups} == {"prefill", "decode"}
    assert max(len(step.groups) for step in fused.trace) == 4
    for name, rows in logits_of(fused).items():
        assert np.array_equal(rows.view(np.int32), logits_of(single)[name].view(np.int32))


def test_steps_that_nobody_observes_take_the_one_call(tiny_target, monkeypatch):
    target = tiny_target("llama", "invariant", "fp32", "cpp")

    def refuse(*arguments):
        raise AssertionError("an operator was called from Python")

    monkeypatch.setattr(type(target.decoder.kernels), "linear", refuse)
    target.play(*script("fp32"))
    with target.observe(None, None, None), pytest.raises(AssertionError, match="from Python"):
        target.play(*script("fp32"))


@pytest.mark.parametrize("family", FAMILIES)
def test_bf16_weights_under_fp32_arithmetic_are_fp32_weights_rounded_once(tiny_target, family):
    target = tiny_target(family, "invariant", "bf16w", "cpp")
    result = target.play(*script("bf16w"))
    stored = target.checkpoint.weights
    rounded = {
        name: stored[name].bfloat16().float() if stored[name].dim() == 2 else stored[name].clone() for name in stored
    }
    wide = EngineTarget(target.model, "invariant", "fp32", kernel_backend="cpp")
    wide._decoder = Decoder(
        target.checkpoint.config, Weights(rounded, InMemory(rounded), torch.float32), wide._kernel_set
    )
    expected = wide.play(*script("fp32"))
    plain = EngineTarget(target.model, "invariant", "fp32", kernel_backend="cpp").play(*script("fp32"))
    for name, rows in logits_of(result).items():
        assert np.array_equal(rows, logits_of(expected)[name])
        assert not np.array_equal(rows, logits_of(plain)[name])


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("kernels", ["torch", "invariant"])
def test_embedding_rows_are_those_of_the_checkpoint(kernels, dtype, backend):
    ours = kernel_set(kernels, backend)
    held = PRECISIONS[dtype]
    table = torch.randn(8229, 23, generator=torch.Generator().manual_seed(5)).to(held.weights)
    ids = torch.tensor([0, 31, 32, 33, 4095, 4096, 8191, 8192, 8228, 33])
    packed = ours.pack_linear([table], [None], held.activations)
    assert torch.equal(ours.embedding(ids, packed, held.activations), table[ids].to(held.activations))


@pytest.mark.parametrize("bad", [-1, 64])
def test_an_id_without_a_row_is_refused(bad):
    ours = kernel_set("invariant", "cpp")
    packed = ours.pack_linear([torch.ones(64, 8)], [None])
    with pytest.raises(KernelError, match="from 0 to 63"):
        ours.embedding(torch.tensor([3, bad]), packed, torch.float32)


def mapped(folder: Path) -> bool:
    return str(folder) in Path("/proc/self/maps").read_text()


def test_the_checkpoint_is_unmapped_once_its_weights_are_packed(tiny_folder, tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    for file in tiny_folder("llama").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    target = EngineTarget(str(folder), "invariant", "fp32", kernel_backend="cpp")
    assert mapped(folder)
    first = target.play(*script("fp32"))
    assert not mapped(folder)
    again = target.with_kernels("invariant").play(*script("fp32"))  # Maps it again.
    for name, rows in logits_of(first).items():
        assert np.array_equal(rows, logits_of(again)[name])
