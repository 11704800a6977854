"""Show that an Arm build gives the bits of the x86 builds: same inputs, every operator, one hash each.

Needs a cross compiler and an emulator (Debian: g++-aarch64-linux-gnu, qemu-user). Run: python benchmarks/arm_bits.py
Exits 0 when every hash agrees, 1 when one differs.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from detharness.kernels.cpu.build import SOURCES, VECTOR_BITS, recipe

ARM = "aarch64-linux-gnu-g++"
DRIVER = Path(__file__).with_suffix(".cpp")
NOT_FOR_A_PROGRAM = {"-shared", "-fPIC", "-fvisibility=hidden"}


def hashes(compiler: str, flags: tuple[str, ...], runner: tuple[str, ...], program: Path) -> list[str]:
    """Build the driver beside the kernels and return the lines it prints."""
    kept = [flag for flag in flags if flag not in NOT_FOR_A_PROGRAM]
    sources = [str(path) for path in sorted(SOURCES.glob("*.cpp"))]
    subprocess.run([compiler, *kept, "-static", str(DRIVER), *sources, "-o", str(program)], check=True)
    return subprocess.run([*runner, str(program)], check=True, capture_output=True, text=True).stdout.splitlines()


def main() -> int:
    """Compare the Arm build with each x86 width this host runs."""
    with tempfile.TemporaryDirectory() as folder:
        portable = tuple(flag for flag in recipe(128).flags if not flag.startswith("-m"))
        arm = hashes(ARM, portable, ("qemu-aarch64",), Path(folder) / "arm")
        print(f"arm 128: {len(arm)} cases")
        differing = 0
        widest = recipe().vector_bits
        for bits in (bits for bits in VECTOR_BITS if bits <= widest):
            wanted = recipe(bits)
            here = hashes(wanted.compiler, wanted.flags, (), Path(folder) / f"x86-{bits}")
            moved = [f"{a} != {b}" for a, b in zip(arm, here, strict=True) if a != b]
            print(f"x86 {bits}: {len(here) - len(moved)} of {len(here)} cases have the bits of Arm", *moved, sep="\n  ")
            differing += len(moved)
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
