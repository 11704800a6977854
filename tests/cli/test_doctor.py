"""``detharness doctor``: what it shows, its exit codes, and what it says when C++ cannot be built."""

import json
import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from detharness.cli import _app
from detharness.kernels.certify import certificate as module
from detharness.kernels.certify.rows import Finding

PASSED = Finding("linear fp32 576x96", 10, None)
MOVED = Finding("linear fp32 576x96", 4, "2 rows, 1 threads: the row in slot 0 differs from the same row alone")


@pytest.fixture
def doctor(monkeypatch, tmp_path):
    """``doctor(findings by backend, *arguments)`` runs the command over such probes; no certificate was kept before."""
    monkeypatch.setenv("DETHARNESS_CACHE", str(tmp_path))
    monkeypatch.setattr(module, "_IN_PROCESS", {})

    def run(found, *arguments):
        monkeypatch.setattr(module, "probe", lambda kernels, threads: found[kernels.backend])
        return CliRunner().invoke(_app, ["doctor", *arguments])

    return run


STRICTLY = ("--strict", "--prompts", "prompts.txt", "--dtype", "fp32")
HEALTHY = {"cpp": (PASSED,), "pytorch": (PASSED,), "library": (MOVED,)}


def test_healthy_kernels_beside_a_control_that_moves(doctor):
    result = doctor(HEALTHY, "--json")
    assert result.exit_code == 0
    report = json.loads(result.stdout.splitlines()[-1])
    assert report["exit_code"] == 0
    assert [(c["backend"], c["status"], c["cases"]) for c in report["certificates"]] == [
        ("cpp", "passed", 10),
        ("pytorch", "passed", 10),
        ("library", "failed", 4),
    ]
    assert report["cpp"] == {"built": True, "reason": None}
    assert "the row in slot 0 differs" in result.stderr


def test_a_row_pure_set_that_moves_ends_with_1(doctor):
    assert doctor({**HEALTHY, "cpp": (PASSED, MOVED)}).exit_code == 1
    assert doctor({**HEALTHY, "pytorch": (MOVED,)}, "--fresh").exit_code == 1


def test_kept_certificates_are_shown_and_fresh_ones_asked_for(doctor):
    assert doctor(HEALTHY).exit_code == 0
    broken = {**HEALTHY, "cpp": (MOVED,)}
    assert doctor(broken).exit_code == 0
    assert doctor(broken, "--fresh").exit_code == 1


@pytest.fixture
def broken_compiler(tmp_path):
    path = tmp_path / "c++"
    lines = (
        "#!/bin/sh",
        '[ "$1" = --version ] && echo broken 1.0 && exit 0',
        'echo "no \x1b[31mregister" >&2',
        "exit 7",
    )
    path.write_text("\n".join(lines))
    path.chmod(0o755)
    return str(path)


def test_a_compiler_that_fails_is_named_and_quoted_with_debug(doctor, broken_compiler, monkeypatch):
    monkeypatch.setenv("CXX", broken_compiler)
    result = doctor(HEALTHY)
    assert result.exit_code == 0
    assert "not built: the compiler" in result.stderr
    assert "register" not in result.stderr
    result = doctor(HEALTHY, "--debug")
    assert "no \\x1b[31mregister" in result.stderr


def probe_strictly(tmp_path, tiny, **environment):
    (tmp_path / "prompts.txt").write_text("one\n")
    return subprocess.run(
        [sys.executable, "-c", "from detharness.cli import main; main()", "probe", f"engine:{tiny}", *STRICTLY],
        env={**os.environ, "DETHARNESS_CACHE": str(tmp_path / "cache"), **environment},
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )


def test_strict_refuses_the_fallback(tmp_path, tiny_folder, broken_compiler):
    run = probe_strictly(tmp_path, tiny_folder("llama"), CXX=broken_compiler)
    assert run.returncode == 2
    assert run.stderr.startswith("Error: the compiler ")
    assert len(run.stderr.splitlines()) == 1
    assert not (tmp_path / "runs").exists()


def test_strict_refuses_kernels_that_fail(tiny_folder, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "_IN_PROCESS", {})
    monkeypatch.setenv("DETHARNESS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "probe", lambda kernels, threads: (MOVED,))
    (tmp_path / "prompts.txt").write_text("one\n")
    result = CliRunner().invoke(_app, ["probe", *STRICTLY, f"engine:{tiny_folder('llama')}"])
    assert not (tmp_path / "runs").exists()
    assert result.exit_code == 2
    assert "fail their bit probe on this host: linear fp32 576x96" in result.stderr
