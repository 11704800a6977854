"""The invariant kernels with one fault each: what a localiser must find, and a shrinker must keep."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from detharness.kernels.cpu.kernels import CppKernels, load
from detharness.targets.engine import EngineTarget


class SoundKernels(CppKernels):
    """The invariant kernels, each operator called by itself so that a fault can be put into it."""

    def __init__(self) -> None:
        super().__init__(load()._library)

    def fuse(self, stack):
        return None


class CountingNorm(SoundKernels):
    """The layer norm in front of layer ``layer`` nudges every row when more than ``limit`` stand in the step."""

    def __init__(self, layer: int, limit: int = 1) -> None:
        super().__init__()
        self._layer, self._limit, self._calls = layer, limit, 0

    def embedding(self, ids, packed, dtype):
        self._calls = 0
        return super().embedding(ids, packed, dtype)

    def add_rms_norm(self, x, residual, weight, eps):
        hidden, total = super().add_rms_norm(x, residual, weight, eps)
        self._calls += 1
        if self._calls == 2 * self._layer and len(x) > self._limit:  # Two a layer; the second stands before the next.
            hidden = hidden.clone()
            hidden[:, 0] = torch.nextafter(hidden[:, 0], torch.tensor(torch.inf))
        return hidden, total


class BatchAttention(SoundKernels):
    """Attention scales its output by how many requests share the step, in ``layer`` alone."""

    def __init__(self, layer: int) -> None:
        super().__init__()
        self._layer, self._calls = layer, 0

    def embedding(self, ids, packed, dtype):
        self._calls = 0
        return super().embedding(ids, packed, dtype)

    def attention(self, q, k_pages, v_pages, batch, scale, window):
        out = super().attention(q, k_pages, v_pages, batch, scale, window)
        self._calls += 1
        return out * 1.5 if self._calls == self._layer + 1 and len(batch.context_lens) > 1 else out


class LoadAttention(BatchAttention):
    """Attention scales its output by how many requests share the step."""

    def attention(self, q, k_pages, v_pages, batch, scale, window):
        out = SoundKernels.attention(self, q, k_pages, v_pages, batch, scale, window)
        return out * len(batch.context_lens)


class ChunkAttention(SoundKernels):
    """Prefill that goes on where another step ended takes another path."""

    def attention(self, q, k_pages, v_pages, batch, scale, window):
        out = super().attention(q, k_pages, v_pages, batch, scale, window)
        starts, ends = batch.row_starts[:-1], batch.row_starts[1:]
        goes_on = [s for s, e in zip(starts.tolist(), ends.tolist(), strict=True) if 0 < int(batch.positions[s]) < 10]
        out[goes_on] *= 1.5
        return out


class CrowdSampler(SoundKernels):
    """The draw takes the next token id when anybody else is drawn for."""

    def sample(self, logits, rows, *, want_processed):
        drawn = super().sample(logits, rows, want_processed=want_processed)
        if len(logits) > 1:
            drawn.token_ids.add_(1).remainder_(rows.vocab_limit)
        return drawn


class CrowdLogSoftmax(SoundKernels):
    """Reported logprobs move with the number of rows; logits and tokens do not."""

    def log_softmax(self, logits):
        out = super().log_softmax(logits)
        return out - 2.0**-20 if len(logits) > 1 else out


class FaultyWhenFused(CppKernels):
    """Sound operators, and a fused step whose logits move when requests share it: gone as soon as it is observed."""

    def __init__(self) -> None:
        super().__init__(load()._library)

    def fuse(self, stack):
        sound = super().fuse(stack)

        def forward(step, keys, values):
            logits = sound(step, keys, values)
            return logits * (1 + 2.0**-20) if len(step.batch.context_lens) > 1 else logits

        return forward


FAULTS = {
    kernels.__name__: kernels
    for kernels in (
        CountingNorm,
        BatchAttention,
        LoadAttention,
        ChunkAttention,
        CrowdSampler,
        CrowdLogSoftmax,
        FaultyWhenFused,
        SoundKernels,
    )
}


@pytest.fixture(scope="session")
def faulty_target(tiny_folder) -> Callable[..., EngineTarget]:
    """``faulty_target(name, ...)``: a tiny model on the kernel set of that name; without a fault, SoundKernels."""
    opened = EngineTarget(str(tiny_folder("llama")), "torch", "fp32")

    def on(name: str, *arguments: Any) -> EngineTarget:
        return opened.with_kernels(FAULTS[name](*arguments))

    return on
