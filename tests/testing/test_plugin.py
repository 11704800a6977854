"""The plugin in other people's suites, each run by a pytest of its own: it costs nothing, breaks nothing, and helps."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

UNRELATED = "def test_arithmetic():\n    assert 1 + 1 == 2\n"
LOADED = """
import sys

def pytest_sessionfinish():
    print("\\nloaded:", [name for name in ("torch", "numpy", "hypothesis", "detharness.testing.purity")
                         if name in sys.modules])
"""
BACKWARDS = "def pytest_collection_modifyitems(items):\n    items.reverse()\n"
USING = """
import pytest
from detharness.testing import Batch, Normal, assert_row_pure
from kernel import scaled

def test_seed(detharness_seed):
    assert detharness_seed == 11

def test_counts(row_counts):
    assert row_counts[:9] == (1, 2, 3, 4, 5, 7, 8, 9, 15)
    assert row_counts[-1] == 129

def test_kernel(detharness_seed):
    assert_row_pure(scaled, rows={"x": Normal(4)}, batches=[Batch(rows=3)], seed=detharness_seed)
"""
KERNEL = "def scaled(x):\n    return x * len(x)\n"
OWN_FIXTURE = """
import pytest

@pytest.fixture
def row_counts():
    return "mine"

def test_mine(row_counts):
    assert row_counts == "mine"
"""
GROUP = """
from detharness.testing import BitsMovedError
from detharness.testing.failures import Difference

found = Difference(None, (0,), (1,), "float32", True, "0x0.0p+0", "-0x0.0p+0", 1, 1)

def moved(code):
    return BitsMovedError(
        subject="f", axes=("rows",), rows=2, row=0, left="", right="", difference=found, reproduction=code
    )

def test_both():
    raise ExceptionGroup("both", [moved("first()"), ExceptionGroup("inner", [moved("second()")]), OSError()])
"""


def pytest_in(folder: Path, *options: str, **files: str) -> subprocess.CompletedProcess[str]:
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-W", "error", "--strict-markers", "--strict-config", *options]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def test_the_plugin_is_an_entry_point():
    found = {entry.value for entry in entry_points(group="pytest11") if entry.name == "detharness"}
    assert found == {"detharness.testing.plugin"}


def test_an_unrelated_suite_loads_neither_torch_nor_hypothesis(tmp_path):
    run = pytest_in(tmp_path, "--collect-only", conftest=LOADED, test_unrelated=UNRELATED)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "detharness: --detharness-seed=0" in run.stdout
    assert "1 test collected" in run.stdout
    assert "loaded: []" in run.stdout


def test_it_can_be_left_out(tmp_path):
    run = pytest_in(tmp_path, "-p", "no:detharness", test_unrelated=UNRELATED)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "--detharness-seed" not in run.stdout
    refused = pytest_in(tmp_path, "-p", "no:detharness", "--detharness-seed=1")
    assert refused.returncode == 4
    assert "unrecognized arguments" in refused.stderr


def test_fixtures_and_reproductions_under_xdist_in_any_order(tmp_path, monkeypatch):
    run = pytest_in(tmp_path, "-n1", "--detharness-seed=11", kernel=KERNEL, test_using=USING, conftest=BACKWARDS)
    assert "1 failed, 2 passed" in run.stdout, run.stdout + run.stderr
    assert "a row's bits change with the number of rows" in run.stdout
    _, _, section = run.stdout.partition("detharness: reproduction")
    code = section.split("\n", 1)[1].split("\n====", 1)[0]
    assert "normal((61, 4), seed=11000, dtype=torch.float32)" in code
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(AssertionError):
        exec(code, {})


def test_each_failure_of_a_group_gets_its_section_and_a_fixture_of_ones_own_wins(tmp_path):
    run = pytest_in(tmp_path, test_group=GROUP, test_own=OWN_FIXTURE)
    assert "1 failed, 1 passed" in run.stdout, run.stdout + run.stderr
    sections = run.stdout.split("detharness: reproduction")[1:]
    assert [section.splitlines()[1] for section in sections] == ["first()", "second()"]
