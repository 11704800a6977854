"""SmolLM2 on the engine: other concurrency, equal roots; under the library's kernels, other bits.

The claim would be empty if the target asked one cell at a time, so the records must show that rows were shared, and
shared differently.
"""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from detharness.eval.compare.command import compare_folders
from detharness.eval.generate.runner import run
from detharness.eval.generate.settings import GenerateSettings, prepare
from detharness.eval.generate.store import Store
from detharness.eval.runs import Ledger, open_run
from detharness.targets.engine import EngineTarget
from detharness.targets.engine_generation import EngineGeneration

AIME = Path(__file__).parent.parent / "aime_format.jsonl"

# A minute on two quiet cores; where other processes share them, torch's threads wait for theirs.
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def opened():
    """Kernel set -> the target, loaded once."""
    invariant = EngineTarget("smollm2-135m", "invariant", "fp32")
    return {"invariant": invariant, "torch": invariant.with_kernels("torch")}


def generate(opened, folder, kernels, concurrency, **options):
    settings = GenerateSettings(
        target="engine:smollm2-135m", kernels=kernels, out=folder, concurrency=concurrency, **options
    )
    plan = prepare(settings, lambda: EngineGeneration(opened[kernels]))
    with Store(plan) as store:
        outcome = run(plan, store, lambda progress: None, lambda: None)
    assert outcome.progress.complete
    ledger, records = Ledger(open_run(folder)), {}
    for attempt in ledger.run.attempts([]):
        assert ledger.take(attempt)
        records[attempt.generation.cell] = attempt.generation
    return ledger.root, records


def rows_per_step(records):
    return {cell: (record.batch["min"], record.batch["max"]) for cell, record in records.items()}


def bits(records):
    return {cell: record.output.logprob_bits_digest for cell, record in records.items()}


def share_rows_differently(one, other):
    """Both runs shared steps, and not in the same way."""
    assert all(record.batch["max"] > 1 for record in (*one.values(), *other.values()))
    assert rows_per_step(one) != rows_per_step(other)
    assert max(record.batch["mean"] for record in one.values()) < max(record.batch["mean"] for record in other.values())


def test_other_concurrency_gives_equal_roots_and_bits_under_the_invariant_kernels(opened, tmp_path):
    asked = {"task": "arithmetic-mini", "samples": 1, "max_tokens": 24}
    root, few = generate(opened, tmp_path / "few", "invariant", 2, **asked)
    other_root, many = generate(opened, tmp_path / "many", "invariant", 9, **asked)
    share_rows_differently(few, many)
    assert root == other_root
    assert bits(few) == bits(many)
    compared = compare_folders(tmp_path / "few", tmp_path / "many", grade="grade", out=tmp_path / "compared")
    assert compared.comparison.report["verdict"] == "same"


def test_other_concurrency_moves_the_bits_under_the_library_kernels(opened, tmp_path):
    if platform.machine() != "x86_64":
        pytest.skip("the claim is for x86")
    asked = {"task": "arithmetic-mini", "samples": 1, "max_tokens": 12, "limit": 9}
    _, few = generate(opened, tmp_path / "few", "torch", 2, **asked)  # Decode steps of at most 2 rows, and of more
    _, many = generate(opened, tmp_path / "many", "torch", 9, **asked)  # than 4: MKL takes another kernel there.
    share_rows_differently(few, many)
    assert bits(few) != bits(many)
    compared = compare_folders(tmp_path / "few", tmp_path / "many", grade="grade", out=tmp_path / "compared")
    assert compared.comparison.report["verdict"] in ("logprobs_moved", "score_equal_outputs_moved", "score_moved")


def test_sampling_at_a_temperature_gives_equal_roots_too(opened, tmp_path):
    asked = {"task": "aime2026", "data": AIME, "samples": 4, "temperature": 0.8, "max_tokens": 8}
    root, few = generate(opened, tmp_path / "few", "invariant", 3, **asked)
    other_root, many = generate(opened, tmp_path / "many", "invariant", 16, **asked)
    share_rows_differently(few, many)
    assert len(few) == 120
    assert len({record.output.digest for record in few.values()}) > 60, "samples of a task must differ"
    assert root == other_root
    assert bits(few) == bits(many)
