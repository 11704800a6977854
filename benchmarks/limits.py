"""How near the C++ kernels come to what the machine allows, and what a step costs beside them.

    python benchmarks/limits.py bandwidth|context|overhead|memory|growth ...

SmolLM2-135M, greedy, in the engine; medians; nothing else may run. Each line shows a figure and its limit.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from detharness.checkpoints.weights import expected_shapes
from detharness.engine import loop
from detharness.engine.loop import Engine
from detharness.engine.params import EngineConfig, SamplingParams
from detharness.engine.sequence import Request
from detharness.kernels.contract import PRECISIONS, PagedBatch, kernel_set
from detharness.kernels.cpu.arena import Arena
from detharness.targets.engine import EngineTarget

MODEL = "smollm2-135m"
STEPS = 32


def seconds(call: Callable[[], object], rounds: int = 7) -> float:
    """Median wall time of ``call``."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def read_bandwidth() -> float:
    """Bytes per second that all threads read from memory: a dot product over 512 MiB in huge pages."""
    memory = Arena().zeros(128 << 20, torch.float32).fill_(1.0)
    return memory.numel() * 4 / seconds(lambda: torch.dot(memory, memory))


def weight_bytes(target: EngineTarget) -> int:
    """Bytes of weights that one token reads: every tensor once, norms in the checkpoint's dtype."""
    held = PRECISIONS[target.dtype]
    shapes = expected_shapes(target.checkpoint.config).values()
    sizes = [(torch.Size(shape).numel(), held.weights if len(shape) == 2 else held.activations) for shape in shapes]
    return sum(count * dtype.itemsize for count, dtype in sizes)


def decoding(target: EngineTarget, batch: int, steps: int, prompt: int = 64) -> Engine:
    """An engine whose ``batch`` requests have done their prefill and have ``steps`` tokens to go."""
    config = EngineConfig(dtype=target.dtype, num_blocks=batch * ((prompt + steps) // 16 + 2), max_step_tokens=8192)
    engine = Engine(target.decoder, target.checkpoint.tokenizer, (), config)
    for index in range(batch):
        tokens = tuple((7 * index + position) % 40000 + 100 for position in range(prompt))
        engine.add(Request(str(index), tokens, SamplingParams(max_tokens=steps + 2, ignore_eos=True)))
    engine.step()
    return engine


def bandwidth() -> None:
    """Batch-1 decode against the time in which the weights can be read."""
    for dtype in PRECISIONS:
        target = EngineTarget(MODEL, "invariant", dtype, kernel_backend="cpp")
        engine = decoding(target, 1, 5 * STEPS)
        before = read_bandwidth()
        step = seconds(engine.step, 4 * STEPS)
        limit = (before + read_bandwidth()) / 2 / weight_bytes(target)
        print(
            f"{dtype}: decode at batch 1 {1 / step:.1f} tokens/s; weights {weight_bytes(target) / 1e6:.0f} MB, memory "
            f"{limit * weight_bytes(target) / 1e9:.1f} GB/s, so at most {limit:.1f}: {1 / step / limit:.0%} "
            "(limit 60 %)"
        )


def context() -> None:
    """Attention of one decode step over long contexts, layer after layer, against reading its KV once.

    There are as many layers as fill 1 GiB: in a decode step the weights pass through the caches between two layers.
    """
    kernels, heads, kv_heads, width = kernel_set("invariant", "cpp"), 9, 3, 64
    for tokens in (512, 1024, 2048, 4096, 8192):
        layers = 2**30 // (2 * tokens * kv_heads * width * 4)
        pages = [torch.randn(tokens // 16, 16, kv_heads, width) for _ in range(2 * layers)]
        batch = PagedBatch(
            positions=torch.tensor([tokens - 1]),
            slots=torch.tensor([tokens - 1]),
            row_starts=torch.tensor([0, 1]),
            context_lens=torch.tensor([tokens]),
            block_tables=torch.arange(tokens // 16)[None],
            page_size=16,
        )
        query = torch.randn(1, heads, width)

        def attend(pages: list[Any] = pages, batch: PagedBatch = batch, query: torch.Tensor = query) -> None:
            for keys, values in zip(pages[0::2], pages[1::2], strict=True):
                kernels.attention(query, keys, values, batch, width**-0.5, None)

        def read(pages: list[Any] = pages) -> None:
            for page in pages:
                torch.dot(page.view(-1), page.view(-1))

        took, reading = seconds(attend, 21) / layers, seconds(read, 21) / layers
        print(
            f"context {tokens}: {took * 1e6:.0f} us a layer, {took / tokens * 1e9:.0f} ns a token; reading its KV once "
            f"{reading * 1e6:.0f} us: {took / reading:.2f}x (limit at 4096: 1.5x)"
        )


def overhead() -> None:
    """Where a step's time goes at 32 running requests."""
    target = EngineTarget(MODEL, "invariant", "fp32", kernel_backend="cpp")
    spent: dict[str, float] = {}

    def timed(owner: Any, name: str, label: str) -> None:
        call = getattr(owner, name)

        def wrapper(*arguments: Any, **options: Any) -> Any:
            start = time.perf_counter()
            try:
                return call(*arguments, **options)
            finally:
                spent[label] = spent.get(label, 0.0) + time.perf_counter() - start

        setattr(owner, name, wrapper)

    engine = decoding(target, 32, 3 * STEPS)
    timed(engine._decoder, "forward", "forward")
    timed(target.decoder.kernels._library, "forward", "of which in C++")
    timed(engine._scheduler, "schedule", "scheduler")
    timed(loop, "paged_batch", "batch tensors")
    timed(loop, "draw", "sampling")
    timed(loop, "advance", "text and stops")
    engine.step()
    spent.clear()
    start = time.perf_counter()
    for _ in range(2 * STEPS):
        engine.step()
    step = (time.perf_counter() - start) / (2 * STEPS)
    parts = {name: value / (2 * STEPS) for name, value in spent.items()}
    outside = step - parts["of which in C++"] - parts["sampling"]
    print(f"step at 32 running {step * 1e3:.1f} ms; outside the kernels {outside * 1e3:.2f} ms (limit 3)")
    print("; ".join(f"{name} {value * 1e3:.2f} ms" for name, value in sorted(parts.items(), key=lambda item: -item[1])))


def resident(field: str = "VmRSS") -> int:
    """Bytes of this process in memory, from the kernel's own account."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(field + ":"))) * 1024


def memory() -> None:
    """Resident memory of a decoding engine beyond weights and KV, in a process of its own per precision."""
    for dtype in PRECISIONS:
        subprocess.run([sys.executable, __file__, "memory-of", dtype], check=True)


def memory_of(dtype: str) -> None:
    """One line: memory of this process with 8 requests of 512 tokens running."""
    target = EngineTarget(MODEL, "invariant", dtype, kernel_backend="cpp")
    engine = decoding(target, 8, STEPS, prompt=512)
    for _ in range(STEPS):
        engine.step()
    pages = sum(tensor.nbytes for tensor in (*engine._pages.keys, *engine._pages.values))
    known, now, peak = weight_bytes(target) + pages, resident(), resident("VmHWM")
    print(
        f"{dtype}: weights {weight_bytes(target) / 1e6:.0f} MB + KV {pages / 1e6:.0f} MB; resident {now / 1e6:.0f} MB, "
        f"{(now - known) / 1e6:.0f} more (limit 600); peak with loading {peak / 1e6:.0f} MB, "
        f"{(peak - known) / 1e6:.0f} more"
    )


def growth() -> None:
    """Resident memory over 10,000 steps in which requests of every length come and go."""
    target = EngineTarget(MODEL, "invariant", "fp32", kernel_backend="cpp")
    engine = Engine(target.decoder, target.checkpoint.tokenizer, (), EngineConfig(num_blocks=64, max_step_tokens=64))
    sizes, count, done = [], 0, 0
    for step in range(10_001):
        if step % 7 == 0:
            tokens = tuple((31 * step + position) % 40000 + 100 for position in range(step % 61 + 1))
            params = SamplingParams(max_tokens=step % 13 + 1, ignore_eos=True, logprobs=3, temperature=step % 2 * 0.8)
            engine.add(Request(str(step), tokens, params))
            count += 1
        engine.step()
        done += len(engine.take_finished())
        if step % 1000 == 0:
            sizes.append(resident() / 1e6)
    print(f"{count} requests, {done} finished; resident MB every 1000 steps: {', '.join(f'{s:.0f}' for s in sizes)}")
    print(f"growth from step 1000 to step 10000: {sizes[-1] - sizes[1]:.1f} MB")


PARTS = {"bandwidth": bandwidth, "context": context, "overhead": overhead, "memory": memory, "growth": growth}


def main() -> None:
    """Run the parts that are named, or all of them."""
    if sys.argv[1:2] == ["memory-of"]:
        memory_of(sys.argv[2])
        return
    for name in sys.argv[1:] or PARTS:
        PARTS[name]()


if __name__ == "__main__":
    main()
