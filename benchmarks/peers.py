"""The C++ kernels against other engines on the same weights, side by side in one run.

    python benchmarks/peers.py --llama-batched-bench PATH [--rounds N]
    python benchmarks/peers.py --transformers [--rounds N]

SmolLM2-135M, greedy, as many threads as torch has. Decode: tokens per second at batch 1, 8, 32, contexts of 64 to 96.
Prefill: one prompt of 512 tokens. The engines take turns, medians of the rounds. llama.cpp reads a GGUF in fp32 or bf16
that is written here from the packaged model's dequantised tensors, with its metadata; norms stay fp32 in both.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from decode import decode, prefill

from detharness.checkpoints.checkpoint import load_checkpoint
from detharness.checkpoints.locate import locate_model
from detharness.targets.engine import EngineTarget

MODEL = "smollm2-135m"
POINTS = ("decode 1", "decode 8", "decode 32", "prefill 512")


def write_gguf(path: Path, kind: str) -> None:
    """Write the packaged model as an fp32 or bf16 GGUF of the same tensors and metadata."""
    reader = gguf.GGUFReader(str(locate_model(MODEL).path))
    writer = gguf.GGUFWriter(str(path), reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        if name == "general.file_type":
            writer.add_file_type(0 if kind == "fp32" else int(gguf.LlamaFileType.MOSTLY_BF16))
            continue
        array = field.types[0] == gguf.GGUFValueType.ARRAY
        writer.add_key_value(name, field.contents(), field.types[0], field.types[-1] if array else None)
    for tensor in reader.tensors:
        shape = tuple(int(size) for size in reversed(tensor.shape))
        values = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32).reshape(shape)
        if kind == "bf16" and len(shape) > 1:
            rounded = torch.from_numpy(values.copy()).bfloat16().view(torch.uint8).numpy().reshape(shape[0], -1)
            writer.add_tensor(tensor.name, rounded, raw_dtype=gguf.GGMLQuantizationType.BF16)
        else:
            writer.add_tensor(tensor.name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def llama(program: str, model: Path) -> dict[str, float]:
    """Tokens per second of ``llama-batched-bench`` at every point."""
    common = ["-m", str(model), "-t", str(torch.get_num_threads()), "-c", "8192", "--output-format", "jsonl"]
    decoded = _rows([program, *common, "-npp", "64", "-ntg", "32", "-npl", "1,8,32"])
    prompt = _rows([program, *common, "-npp", "512", "-ntg", "1", "-npl", "1"])
    found = {f"decode {row['pl']}": row["speed_tg"] for row in decoded}
    return {**found, "prefill 512": prompt[0]["speed_pp"]}


def _rows(command: list[str]) -> list[dict[str, Any]]:
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


def ours(target: EngineTarget) -> dict[str, float]:
    """Tokens per second of the engine at every point."""
    speeds = {f"decode {batch}": decode(target, batch) for batch in (1, 8, 32)}
    return {**speeds, "prefill 512": prefill(target)}


class Transformers:
    """The same weights in transformers' own model: ``generate`` with its cache, greedy."""

    def __init__(self) -> None:
        from transformers import LlamaConfig, LlamaForCausalLM

        checkpoint = load_checkpoint(MODEL, dtype=torch.float32)
        config = checkpoint.config
        self._model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=config.vocab_size,
                hidden_size=config.hidden_size,
                intermediate_size=config.intermediate_size,
                num_hidden_layers=config.num_layers,
                num_attention_heads=config.num_heads,
                num_key_value_heads=config.num_kv_heads,
                max_position_embeddings=config.max_positions,
                rms_norm_eps=config.rms_eps,
                tie_word_embeddings=config.tie_embeddings,
            )
        ).eval()
        missing, unexpected = self._model.load_state_dict(dict(checkpoint.weights), strict=False)
        assert not unexpected
        assert set(missing) <= {"lm_head.weight"}  # It is tied to the embedding.

    def __call__(self) -> dict[str, float]:
        """Tokens per second at every point: what 32 more tokens take, prefill apart."""
        speeds = {f"decode {batch}": self._decode(batch) for batch in (1, 8, 32)}
        return {**speeds, "prefill 512": 512 / self._seconds(1, 512, 1)}

    def _decode(self, batch: int) -> float:
        return 32 * batch / (self._seconds(batch, 64, 33) - self._seconds(batch, 64, 1))

    def _seconds(self, batch: int, prompt: int, tokens: int) -> float:
        ids = torch.arange(batch * prompt).view(batch, prompt) % 40000 + 100
        start = time.perf_counter()
        self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=tokens,
            min_new_tokens=tokens,
            do_sample=False,
            pad_token_id=0,
        )
        return time.perf_counter() - start


def compare(name: str, peer: Callable[[], dict[str, float]], dtype: str, rounds: int) -> None:
    """Take turns, then print one Markdown row per point: theirs, ours, and the ratio."""
    target = EngineTarget(MODEL, "invariant", dtype, kernel_backend="cpp")
    turns: list[tuple[dict[str, float], dict[str, float]]] = []
    for _ in range(rounds + 1):  # The first round warms up and is dropped.
        turns.append((peer(), ours(target)))
    print(f"| {dtype}, tokens/s | {name} | detharness | ratio |\n|---|---|---|---|")
    for point in POINTS:
        theirs, mine = (statistics.median(turn[side][point] for turn in turns[1:]) for side in (0, 1))
        print(f"| {point} | {theirs:.0f} | {mine:.0f} | {mine / theirs:.2f}x |")


def main() -> None:
    """Run the comparison that is named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama-batched-bench", metavar="PATH")
    parser.add_argument("--transformers", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    if arguments.llama_batched_bench:
        with tempfile.TemporaryDirectory() as folder:
            for kind, dtype in (("fp32", "fp32"), ("bf16", "bf16w")):
                model = Path(folder) / f"{kind}.gguf"
                write_gguf(model, kind)
                peer = lambda model=model: llama(arguments.llama_batched_bench, model)  # noqa: E731 (one line says it)
                compare(f"llama.cpp {kind}", peer, dtype, arguments.rounds)
    if arguments.transformers:
        compare("transformers generate", Transformers(), "fp32", arguments.rounds)


if __name__ == "__main__":
    main()
