"""Grade an AIME run of 120 MB on one core: seconds, peak memory, and that torch was not loaded.

python benchmarks/grade.py [--megabytes 120] [--token-ids]

The run is written by this program: 30 tasks x 32 samples of LaTeX-like reasoning with many escapes and newlines, each
ending in a boxed answer. The grader runs in a process of its own, on one core, as a person would start it.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from detharness.eval.records import Generation, Output, TaskRow
from detharness.records.canonical import canonical_bytes
from detharness.records.digests import sha256_value

TASKS, SAMPLES = 30, 32
SECONDS, MEGABYTES_OF_MEMORY = 10.0, 300.0
_PHRASES = (
    "Let $n = 2^{a}3^{b}$ with $a, b \\ge 0$; then \\[\\sum_{k=1}^{n} \\frac{1}{k} < 7.\\]\n",
    "Wait, that counts \\(\\binom{10}{3}\\) twice, so try the other case \u2014 is it 12 or 33?\n\n",
    'He calls it "the answer is near"; we check modulo 1000 and get \\boxed{} later.\n',
    "Therefore x\u00b2 \u2212 5x + 6 = 0, hence x = 2 or x = 3, and the sum is 5.\n",
)


def write_run(folder: Path, megabytes: float, *, token_ids: bool) -> int:
    """Write the run; returns the size of its generations in bytes."""
    draw = random.Random(0)
    block = "".join(draw.choices(_PHRASES, k=200))
    each = int(megabytes * 1e6 / (TASKS * SAMPLES))
    rows = [
        TaskRow(f"{number}", number + 1, "text", sha256_value(number), "How many?", "33", None, None, (), {})
        for number in range(TASKS)
    ]
    manifest = {"task": "aime2026", "answer_kind": "integer", "samples": SAMPLES, "matches_published": False}
    (folder / "manifest.json").write_bytes(canonical_bytes(manifest))
    (folder / "tasks.jsonl").write_bytes(b"".join(canonical_bytes(asdict(row)) + b"\n" for row in rows))
    path = folder / "generations.jsonl"
    with path.open("wb") as file:
        for row in rows:
            for sample in range(SAMPLES):
                start = draw.randrange(len(block))
                thinking = (block[start:] + block * (each // len(block) + 1))[:each]
                text = f"<think>{thinking}</think>\nThe answer is \\boxed{{{draw.choice((33, 12))}}}."
                ids = tuple(draw.choices(range(50_000), k=len(text) // 4)) if token_ids else None
                request = {
                    "messages_digest": sha256_value([]),
                    "sampling": {"temperature": 0.6},
                    "seed": draw.randrange(2**32),
                }
                output = Output(text, None, ids, "stop", 90, len(text) // 4, None)
                generation = Generation(
                    "aime2026",
                    row.task_id,
                    sample,
                    0,
                    "text",
                    row.row_digest,
                    request,
                    "ok",
                    output,
                    None,
                    None,
                    0,
                    9.5,
                )
                file.write(canonical_bytes(generation.as_row()) + b"\n")
    return path.stat().st_size


_SCRIPT = """
import sys
from detharness.cli import main
sys.argv = ["detharness", "eval", "grade", sys.argv[1]]
try:
    main()
finally:
    assert "torch" not in sys.modules, "grading loaded torch"
"""


def measure(folder: Path) -> tuple[float, float]:
    """(seconds, peak megabytes) of ``detharness eval grade`` on one core."""
    core = min(os.sched_getaffinity(0))
    started = time.monotonic()
    subprocess.run(
        [sys.executable, "-c", _SCRIPT, str(folder)],
        check=True,
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
    )
    seconds = time.monotonic() - started
    return seconds, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1000


def main() -> int:
    """Print the figures; 1 if one is over its limit."""
    parser = argparse.ArgumentParser(description="Grade a large AIME run on one core.")
    parser.add_argument("--megabytes", type=float, default=120.0, help="text in the generation file")
    parser.add_argument("--token-ids", action="store_true", help="store token ids too, one for four characters")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        size = write_run(Path(folder), options.megabytes, token_ids=options.token_ids)
        seconds, memory = measure(Path(folder))
        page = (Path(folder) / "grade" / "report.html").stat().st_size
    print(f"{size / 1e6:.0f} MB of generations: {seconds:.1f} s, {memory:.0f} MB at most, page {page / 1e6:.1f} MB")
    return 0 if seconds < SECONDS and memory < MEGABYTES_OF_MEMORY else 1


if __name__ == "__main__":
    sys.exit(main())
