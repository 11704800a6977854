"""Faulty linear layers: the order of the sum over K, or the scale of the input, read from the step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from detharness.kernels.contract import KernelSet
from detharness.kernels.mutants.faulty import Fault, FaultyKernels
from detharness.kernels.mutants.orders import partial_products, split_product


class OneRowKernel(FaultyKernels):
    """A row that stands alone in the step takes a matrix-vector kernel, which adds in another order."""

    fault = Fault("one-row-kernel", ("vllm#54506", "pytorch#136338"), "linear", ("batch_size",))

    def linear(self, x: Tensor, packed: Any) -> Tensor:
        """See the contract."""
        return split_product(self.sound, x, packed, 2 if len(x) == 1 else 1)


class OddBatchSize(FaultyKernels):
    """Five rows, and no other number, fall through to a path without SIMD."""

    fault = Fault("odd-batch-size", ("llama.cpp#3014",), "linear", ("batch_size",))

    def linear(self, x: Tensor, packed: Any) -> Tensor:
        """See the contract."""
        return split_product(self.sound, x, packed, 2 if len(x) == 5 else 1)


class SplitKByRows(FaultyKernels):
    """K is split the further, the fewer rows there are to keep all cores busy."""

    fault = Fault("split-k-by-rows", ("torch-spyre#3624", "TransformerEngine#2986"), "linear", ("batch_size",))

    def linear(self, x: Tensor, packed: Any) -> Tensor:
        """See the contract."""
        return split_product(self.sound, x, packed, max(1, 4 // max(1, len(x))))


class AllReduceBySize(FaultyKernels):
    """Four ranks hold K; the sum of their parts goes round a ring once the message passes a size gate."""

    fault = Fault("all-reduce-by-size", ("vllm#56370", "vllm#50505"), "linear", ("batch_size",))
    gate = 512  # Elements of the message.

    def linear(self, x: Tensor, packed: Any) -> Tensor:
        """See the contract."""
        a, b, c, d = partial_products(self.sound, x, packed, 4)
        return ((b + c) + d) + a if a.numel() > self.gate else (a + b) + (c + d)


class AccumulatorByRows(FaultyKernels):
    """Below four rows the partial sums of a split product are kept in bf16."""

    fault = Fault("accumulator-by-rows", ("vllm#54506",), "linear", ("batch_size",))

    def linear(self, x: Tensor, packed: Any) -> Tensor:
        """See the contract."""
        if len(x) >= 4:
            return self.sound.linear(x, packed)
        first, second = partial_products(self.sound, x, packed, 2)
        return (first.bfloat16() + second.bfloat16()).to(x.dtype)


class PaddedBucket(FaultyKernels):
    """Rows are padded to a bucket of eight, and a larger bucket has a kernel of its own."""

    fault = Fault("padded-bucket", ("pegainfer#613", "vllm#28131"), "linear", ("batch_size",))

    def linear(self, x: Tensor, packed: Any) -> Tensor:
        """See the contract."""
        bucket = -(-len(x) // 8) * 8
        return split_product(self.sound, x, packed, 2 if bucket > 8 else 1)


class RemainderRows(FaultyKernels):
    """Rows left over behind full tiles of four are computed by another loop."""

    fault = Fault("remainder-rows", ("pytorch#45422", "pytorch#124025"), "linear", ("slot", "batch_size"))

    def linear(self, x: Tensor, packed: Any) -> Tensor:
        """See the contract."""
        whole = len(x) - len(x) % 4
        if whole in (0, len(x)):
            return self.sound.linear(x, packed)
        rest = split_product(self.sound, x[whole:].contiguous(), packed, 2)
        return torch.cat([self.sound.linear(x[:whole].contiguous(), packed), rest])


class SumPerThread(FaultyKernels):
    """Every thread adds up its own part of K."""

    fault = Fault("sum-per-thread", ("pytorch#88718",), "linear", ("threads",))

    def linear(self, x: Tensor, packed: Any) -> Tensor:
        """See the contract."""
        return split_product(self.sound, x, packed, torch.get_num_threads())


class BatchScale(FaultyKernels):
    """Activations are rounded to int8 with one scale for the whole batch."""

    fault = Fault("batch-scale", ("onnxruntime#10111",), "linear", ("content",))

    def linear(self, x: Tensor, packed: Any) -> Tensor:
        """See the contract."""
        return self.sound.linear(rounded_to_int8(x), packed)


class ExpertsInOrderOfArrival(FaultyKernels):
    """The MLP's width is four experts. Each row adds their parts in the order in which the batch first called them."""

    fault = Fault("experts-in-order-of-arrival", ("vllm#48032", "sglang#33511"), "linear", ("slot", "content"))

    def __init__(self, sound: KernelSet) -> None:
        super().__init__(sound)
        self._gated: Tensor | None = None

    def silu_and_mul(self, gate_up: Tensor) -> Tensor:
        """See the contract; what comes out is what the experts' down projection takes next."""
        self._gated = self.sound.silu_and_mul(gate_up)
        return self._gated

    def linear(self, x: Tensor, packed: Any) -> Tensor:
        """See the contract."""
        if x is not self._gated:
            return self.sound.linear(x, packed)
        loads = torch.stack([x[:, expert::4].abs().amax(dim=1) for expert in range(4)], dim=1)
        called = dict.fromkeys(loads.argmax(dim=1).tolist())  # Experts in the order of the rows that call them first.
        order = [*called, *(expert for expert in range(4) if expert not in called)]
        parts = partial_products(self.sound, x, packed, 4)
        total: Tensor = parts[order[0]]
        for expert in order[1:]:
            total = total + parts[expert]
        return total


def rounded_to_int8(x: Tensor) -> Tensor:
    """x as int8 with one scale for all of it would give it back."""
    if not x.any():
        return x
    scale = x.abs().max() / 127
    return (x / scale).round() * scale
