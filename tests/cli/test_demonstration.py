"""What the README promises of ``detharness probe --kernels both``, on SmolLM2 itself, with shorter replies.

The control's claim is for x86: bits move in fp32 with the number of rows, and in bf16 when rows are computed again in
another company. Whether the text moves too depends on the CPU; then the report must hold both replies.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys

import pytest

# Under a minute on two quiet cores; where other processes share them, torch's threads wait for theirs.
pytestmark = pytest.mark.timeout(900)

COMMAND = [sys.executable, "-c", "from detharness.cli import main; main()", "probe", "--kernels", "both", "--json"]


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demonstration")
    run = subprocess.run([*COMMAND, "--max-tokens", "16"], cwd=folder, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    (line,) = run.stdout.splitlines()
    report = json.loads((folder / "runs/probe-0001/report.json").read_bytes())
    assert json.loads(line) == {**report, "exit_code": 0}
    return report


def arms(report, role):
    return {arm["dtype"]: arm for arm in report["arms"] if arm["role"] == role}


def test_the_subject_does_not_move_on_any_axis_and_every_axis_was_exercised(report):
    assert report["verdict"] == "identical"
    for arm in arms(report, "subject").values():
        assert arm["kernels"] == "invariant"
        assert arm["verdict"] == "identical"
        assert arm["statistics"]["diverged"] == 0
        assert all(prompt["unique_completions"] == 1 for prompt in arm["prompts"])
    assert arms(report, "subject")["fp32"]["axes"]["batch_size"]["status"] == "identical"
    untested = {axis for axis, found in report["axes"].items() if found["status"] == "not_tested"}
    assert untested <= {"threads"}, "a host with one core cannot vary threads; everything else must be exercised"


def test_the_control_moves_in_bits_on_x86(report):
    if platform.machine() != "x86_64":
        pytest.skip("the claim is for x86")
    control = arms(report, "control")
    assert control["fp32"]["axes"]["batch_size"]["status"] == "diverged"
    assert control["bf16"]["verdict"] == "diverged"
    moved = {axis for axis, found in control["bf16"]["axes"].items() if found["status"] == "diverged"}
    assert moved & {"content", "chunk", "prefix_cache", "preemption"}


def test_a_control_whose_text_moved_shows_its_replies(report):
    for arm in arms(report, "control").values():
        several = any(prompt["unique_completions"] > 1 for prompt in arm["prompts"])
        assert several == (arm["statistics"]["diverged_tokens"] > 0)


def test_the_demonstration_keeps_its_terms(report):
    assert report["amplified"]
    for arm in report["arms"]:
        plain = [prompt["id"] for prompt in arm["prompts"] if not prompt["id"].endswith("~sampled")]
        assert len(plain) == 4
        assert {prompt["id"].removesuffix("~sampled") for prompt in arm["prompts"]} == set(plain)
        assert 2 in arm["axes"]["batch_size"]["exercised"]["batch_sizes"]
    assert any("amplified" in line for line in report["not_shown"])


def test_one_prompt_is_long():
    from detharness.probes.prompt_files import packaged_prompts, tokenize_prompts
    from detharness.targets.protocol import SamplingParams
    from detharness.targets.resolve import resolve_target

    target = resolve_target("engine:smollm2-135m", "torch", "fp32")
    probes = tokenize_prompts(packaged_prompts(), target, SamplingParams(max_tokens=48), 0)
    assert max(len(probe.token_ids) for probe in probes) >= 220
