"""The fingerprint names what can change a bit, and nothing that names the machine or a place on it."""

import json
import os
import platform
import socket
import subprocess
import sys
from importlib import metadata

import pytest

from detharness.records.canonical import canonical_bytes
from detharness.records.environment import environment_fingerprint, parse_cpuinfo

X86 = """\
processor\t: 0
model name\t: Some CPU @ 2.60GHz
flags\t\t: fpu sse4_2 fma avx avx2 avx512f amx_bf16 rdtscp

processor\t: 1
model name\t: Another CPU
flags\t\t: fpu
"""
ARM = """\
processor\t: 0
Features\t: fp asimd sve bf16 i8mm crc32
CPU implementer\t: 0x41
CPU part\t: 0xd40
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (X86, ("Some CPU @ 2.60GHz", ["amx_bf16", "avx", "avx2", "avx512f", "fma", "sse4_2"])),
        (ARM, ("implementer 0x41 part 0xd40", ["asimd", "bf16", "i8mm", "sve"])),
        ("", (None, [])),
    ],
)
def test_cpuinfo(text, expected):
    assert parse_cpuinfo(text) == expected


def test_versions_and_variables(monkeypatch):
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    fingerprint = environment_fingerprint()
    assert fingerprint["python"] == platform.python_version()
    assert fingerprint["packages"]["torch"] == metadata.version("torch")
    assert fingerprint["variables"]["MKL_CBWR"] == "COMPATIBLE"
    assert fingerprint["variables"]["ONEDNN_MAX_CPU_ISA"] is None
    assert fingerprint["cpu"]["usable_cores"] >= 1
    canonical_bytes(fingerprint)


def test_two_processes_agree_and_neither_imports_torch():
    script = (
        "import sys\n"
        "from detharness.records.canonical import canonical_bytes\n"
        "from detharness.records.environment import environment_fingerprint\n"
        "print(canonical_bytes(environment_fingerprint()).decode())\n"
        "assert 'torch' not in sys.modules\n"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert json.loads(run.stdout) == environment_fingerprint()


def test_no_host_name_and_no_path():
    text = canonical_bytes(environment_fingerprint()).decode()
    assert os.getcwd() not in text
    assert sys.prefix not in text
    assert f'"{socket.gethostname()}"' not in text
