"""The environment fingerprint: what of this machine can change a bit. No host name, no path, no torch."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

_PACKAGES = ("gguf", "numpy", "safetensors", "tokenizers", "torch", "transformers")

# Each selects instructions, thread counts or reduced-precision modes in MKL, oneDNN, OpenBLAS, ATen or libm.
_VARIABLES = (
    "ATEN_CPU_CAPABILITY",
    "GLIBC_TUNABLES",
    "MKL_CBWR",
    "MKL_DYNAMIC",
    "MKL_ENABLE_INSTRUCTIONS",
    "MKL_NUM_THREADS",
    "OMP_DYNAMIC",
    "OMP_NUM_THREADS",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "ONEDNN_MAX_CPU_ISA",
    "OPENBLAS_CORETYPE",
    "OPENBLAS_NUM_THREADS",
)

# The vector and matrix extensions that libraries dispatch on: x86 first, then Arm.
_FLAG_PREFIXES = ("amx", "avx", "f16c", "fma", "sse4", "asimd", "bf16", "i8mm", "sme", "sve")


def environment_fingerprint() -> dict[str, Any]:
    """Return versions, CPU, system and numeric environment variables as plain JSON values.

    A package that is absent and a variable that is not set are None.
    """
    model, flags = parse_cpuinfo(_read(Path("/proc/cpuinfo")))
    return {
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "cpu": {
            "architecture": platform.machine(),
            "model": model,
            "flags": flags,
            "cores": os.cpu_count(),
            "usable_cores": len(os.sched_getaffinity(0)),
        },
        "system": {
            "name": platform.system(),
            "kernel": platform.release(),
            "libc": " ".join(platform.libc_ver()).strip() or None,
        },
        "variables": {name: os.environ.get(name) for name in _VARIABLES},
    }


def parse_cpuinfo(text: str) -> tuple[str | None, list[str]]:
    """Model name and sorted vector extensions of the first processor in ``/proc/cpuinfo`` (x86 or Arm).

    Arm names no model: its implementer and part numbers stand in for it.
    """
    fields = {}
    for line in text.split("\n\n")[0].splitlines():
        name, _, value = line.partition(":")
        fields[name.strip()] = value.strip()
    model = fields.get("model name")
    if model is None and "CPU part" in fields:
        model = f"implementer {fields.get('CPU implementer')} part {fields['CPU part']}"
    flags = (fields.get("flags") or fields.get("Features") or "").split()
    return model, sorted(flag for flag in flags if flag.startswith(_FLAG_PREFIXES))


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # No /proc here: the model stays None in the fingerprint.
        return ""


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
