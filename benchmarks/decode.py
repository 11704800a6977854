"""Decode and prefill speed of the engine under both kernel sets, side by side in one run.

    python benchmarks/decode.py [--dtype fp32|bf16]

SmolLM2-135M, greedy. Decode: tokens drawn per second in steps that hold decodes only, contexts of 64 to 80 tokens.
Prefill: prompt tokens per second of one prompt of 512 tokens in one step. The sets take turns, two rounds, medians;
a round before them warms up.
"""

from __future__ import annotations

import statistics
import sys
import time

import torch

from detharness.engine.loop import Engine
from detharness.engine.params import EngineConfig, SamplingParams
from detharness.engine.sequence import Request
from detharness.targets.engine import EngineTarget

ROUNDS = 2
STEPS = 16


def engine(target: EngineTarget) -> Engine:
    """A fresh engine with room for everything."""
    config = EngineConfig(dtype=target.dtype, num_blocks=512, max_step_tokens=4096)
    return Engine(target.decoder, target.checkpoint.tokenizer, (), config)


def decode(target: EngineTarget, batch: int) -> float:
    """Tokens per second over ``STEPS`` decode steps of ``batch`` requests."""
    running = engine(target)
    for index in range(batch):
        tokens = tuple((7 * index + position) % 40000 + 100 for position in range(64))
        running.add(Request(str(index), tokens, SamplingParams(max_tokens=STEPS + 2, ignore_eos=True)))
    running.step()
    start = time.perf_counter()
    for _ in range(STEPS):
        running.step()
    return STEPS * batch / (time.perf_counter() - start)


def prefill(target: EngineTarget) -> float:
    """Prompt tokens per second of one step that holds a whole prompt of 512."""
    running = engine(target)
    tokens = tuple(position % 40000 + 100 for position in range(512))
    running.add(Request("p", tokens, SamplingParams(max_tokens=1, ignore_eos=True)))
    start = time.perf_counter()
    running.step()
    return 512 / (time.perf_counter() - start)


def main() -> None:
    """Print a Markdown table: tokens per second and the ratio to the torch set."""
    dtype = sys.argv[2] if sys.argv[1:2] == ["--dtype"] else "fp32"
    targets = {"torch": EngineTarget("smollm2-135m", "torch", dtype)}
    for backend in ("cpp", "pytorch"):
        targets[f"invariant, {backend}"] = EngineTarget("smollm2-135m", "invariant", dtype, kernel_backend=backend)
    points = {f"decode {batch}": lambda target, batch=batch: decode(target, batch) for batch in (1, 8, 32)}
    points["prefill 512"] = prefill
    speeds: dict[tuple[str, str], list[float]] = {}
    for _ in range(ROUNDS + 1):  # The first round warms up and is dropped.
        for point, measure in points.items():
            for name, target in targets.items():
                speeds.setdefault((point, name), []).append(measure(target))
    print(f"{dtype}, {torch.get_num_threads()} threads, tokens/s (ratio to torch)")
    print("| | " + " | ".join(targets) + " |")
    print("|---|" + "---|" * len(targets))
    for point in points:
        medians = {name: statistics.median(speeds[point, name][1:]) for name in targets}
        cells = [f"{value:.0f} ({value / medians['torch']:.2f}x)" for value in medians.values()]
        print(f"| {point} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
