"""How long a person waits before anything happens: ``--help``, loading SmolLM2 warm, and the whole demonstration.

    python benchmarks/startup.py [--demo]

Medians of five for the first two. Run it with nothing else running; the limits are those the project promises.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time

HELP = [sys.executable, "-c", "from detharness.cli import main; main()", "--help"]
LOAD = [
    sys.executable,
    "-c",
    "import time, torch; from detharness.checkpoints.checkpoint import load_checkpoint; start = time.perf_counter(); "
    "checkpoint = load_checkpoint('smollm2-135m', dtype=torch.float32); "
    "[checkpoint.weights[name].sum() for name in checkpoint.weights]; print(time.perf_counter() - start)",
]
DEMO = [sys.executable, "-c", "from detharness.cli import main; main()", "probe", "--kernels", "both"]


def seconds(command: list[str], folder: str) -> float:
    """Wall time of a command that must succeed, started in ``folder``."""
    start = time.perf_counter()
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return time.perf_counter() - start


def main() -> None:
    """Print one line per figure, with its limit."""
    with tempfile.TemporaryDirectory() as folder:
        seconds(LOAD, folder)  # Fills the weight cache, so that what follows is warm.
        print(f"--help: {statistics.median(seconds(HELP, folder) for _ in range(5)):.2f} s (limit 0.3)")
        loads = [float(subprocess.check_output(LOAD, cwd=folder, text=True)) for _ in range(5)]
        print(f"load SmolLM2 warm, every weight read: {statistics.median(loads):.2f} s (limit 5)")
        if "--demo" in sys.argv[1:]:
            print(f"detharness probe --kernels both: {seconds(DEMO, folder):.0f} s (limit 180)")


if __name__ == "__main__":
    main()
