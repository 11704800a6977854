"""Faults after the logits: draws that know their batch, and logprobs that are somebody else's."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from detharness.kernels.contract import KernelSet, SampledRows, SamplingRows, tree_plan
from detharness.kernels.elementary import exp64, log64, tree_sum
from detharness.kernels.mutants.faulty import Fault, FaultyKernels
from detharness.kernels.sampling import gumbel_noise


class NoiseByRank(FaultyKernels):
    """Noise goes to the best, the second best, ...; a batch is ranked in eight bits, where close ones change places."""

    fault = Fault("noise-by-rank", ("sglang-omni#1428",), "sample", ("batch_size",))

    def sample(self, logits: Tensor, rows: SamplingRows, *, want_processed: bool) -> SampledRows:
        """See the contract. Masks are left out of the ranked draw."""
        drawn = self.sound.sample(logits, rows, want_processed=want_processed)
        ranked = (logits.to(torch.float8_e4m3fn).float() if len(logits) > 1 else logits)[:, : rows.vocab_limit]
        for row in torch.nonzero(rows.temperature > 0)[:, 0].tolist():
            order = np.argsort(-ranked[row].double().numpy(), kind="stable")
            key = (int(rows.seed[row]), int(rows.sample_index[row]), int(rows.position[row]))
            noise = gumbel_noise(*key, len(order))
            scores = logits[row].double().numpy()[order] / float(rows.temperature[row]) + noise
            drawn.token_ids[row] = int(order[int(np.argmax(scores))])
        return drawn


class SharedStream(FaultyKernels):
    """One generator for everybody: each draw takes the next number of the stream, whoever asks."""

    fault = Fault("shared-stream", ("vllm-ascend#13608", "vllm#52522"), "sample", ("run_to_run",))

    def __init__(self, sound: KernelSet) -> None:
        super().__init__(sound)
        self._drawn = 0

    def sample(self, logits: Tensor, rows: SamplingRows, *, want_processed: bool) -> SampledRows:
        """See the contract."""
        numbers = torch.arange(self._drawn, self._drawn + len(logits))
        self._drawn += len(logits)
        return self.sound.sample(logits, replace(rows, seed=numbers), want_processed=want_processed)


class SeedsDropped(FaultyKernels):
    """A batch whose seeds are not all the same loses them: everybody draws under one made of all."""

    fault = Fault("seeds-dropped", ("vllm#51226",), "sample", ("seeds",))

    def sample(self, logits: Tensor, rows: SamplingRows, *, want_processed: bool) -> SampledRows:
        """See the contract."""
        seeds = rows.seed.tolist()
        if len(set(seeds)) > 1:
            rows = replace(rows, seed=torch.full_like(rows.seed, sum(seeds) % 2**62))
        return self.sound.sample(logits, rows, want_processed=want_processed)


class GreedyBesideSampled(FaultyKernels):
    """A greedy row that shares its step with a sampled one goes through the sampler, at a low temperature."""

    fault = Fault("greedy-beside-sampled", ("tt-metal#37397",), "sample", ("samplers",))
    lowest: ClassVar[float] = 0.1

    def sample(self, logits: Tensor, rows: SamplingRows, *, want_processed: bool) -> SampledRows:
        """See the contract."""
        if bool((rows.temperature > 0).any()):
            rows = replace(rows, temperature=rows.temperature.clamp_min(self.lowest))
        return self.sound.sample(logits, rows, want_processed=want_processed)


class MaskOfTheBatch(FaultyKernels):
    """The smallest top-k of the batch is everybody's."""

    fault = Fault("mask-of-the-batch", ("vllm#1309",), "sample", ("samplers",))

    def sample(self, logits: Tensor, rows: SamplingRows, *, want_processed: bool) -> SampledRows:
        """See the contract."""
        asked = rows.top_k[rows.top_k > 0]
        if len(asked):
            rows = replace(rows, top_k=torch.full_like(rows.top_k, int(asked.min())))
        return self.sound.sample(logits, rows, want_processed=want_processed)


class MaximumOfTheBatch(FaultyKernels):
    """Log-softmax subtracts the largest logit of all rows, not the row's own."""

    fault = Fault("maximum-of-the-batch", ("vllm#11778",), "log_softmax", ("content",))

    def log_softmax(self, logits: Tensor) -> Tensor:
        """See the contract."""
        if not len(logits):
            return self.sound.log_softmax(logits)
        shifted = logits - logits.max()
        total = tree_sum(exp64(shifted.double()), tree_plan("mutant", logits.shape[1], "halving"))
        return shifted - log64(total).float()[:, None]
