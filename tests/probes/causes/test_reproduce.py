"""The file that a shrunken failure becomes: pytest alone fails on it, and passes under kernels that are sound."""

import ast
import os
import re
import subprocess
import sys
from dataclasses import replace

import pytest

from detharness.probes.causes.failure import Failure, Play, Side
from detharness.probes.causes.reproduce import Subject, reproduction, reproduction_name
from detharness.probes.causes.shrink import shrink
from detharness.targets.protocol import Arrival, EngineConfig, FreePages, PagePlacement, SamplingParams

SUBJECT = Subject("engine:tiny", "torch", "fp32", "p", "batch_size", "size=5")
HOSTILE = 'x"""\n\x1b[31m\u202e\ud800\\N{oops}\'; import os'


def arrival(name, length=20, **sampling):
    params = SamplingParams(max_tokens=4, ignore_eos=True, logprobs=2, seq_seed=1, **sampling)
    return Arrival(0, name, tuple(range(40, 40 + length)), params, capture_logits=True)


def crowd(size, name="p"):
    """A request among copies of itself, and alone."""
    config = EngineConfig(num_blocks=64)
    trial = Play((arrival(name), *(arrival(f"{name}~{index}") for index in range(1, size))), config)
    return Failure(Side(trial, (name, 0)), Side(Play((arrival(name),), config), (name, 0)))


@pytest.fixture(scope="module")
def found(tiny_target):
    """Five rows against one: the library's products take other paths on every x86 host with MKL."""
    return shrink(tiny_target("llama", "torch"), crowd(5))


def run_pytest(path, folder):
    """Away from this repository and its configuration."""
    environment = {**os.environ, "DETHARNESS_TARGET": f"engine:{folder}"}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", path.name],
        cwd=path.parent,
        env=environment,
        capture_output=True,
        text=True,
    )


def test_it_fails_on_the_librarys_kernels_and_passes_on_the_invariant_ones(found, tiny_folder, tmp_path):
    path = tmp_path / "reproduce_p_batch_size.py"
    text = reproduction(found, SUBJECT)
    path.write_text(text)
    failing = run_pytest(path, tiny_folder("llama"))
    assert failing.returncode == 1, failing.stdout + failing.stderr
    assert re.search(r"\d+ of 264 logits moved at position \d+", failing.stdout)
    path.write_text(text.replace("\"DETHARNESS_KERNELS\", 'torch'", "\"DETHARNESS_KERNELS\", 'invariant'"))
    passing = run_pytest(path, tiny_folder("llama"))
    assert passing.returncode == 0, passing.stdout + passing.stderr
    assert "1 passed" in passing.stdout


def test_it_says_what_arrives_and_what_was_seen_and_nothing_of_the_machine(found, tmp_path):
    text = reproduction(found, SUBJECT)
    assert "#   before step 0: 'p', prompt length 1, reply length 1, compared\n" in text
    assert "# torch kernels in fp32. No single reduction is left that fails.\n" in text
    assert "# Moved then: " in text
    assert "TARGET = os.environ.get(\"DETHARNESS_TARGET\", 'engine:tiny')\n" in text
    assert f"threads={found.threads[0]}" in text
    assert not re.search(r"/(home|root|tmp|work|usr)\b", text)
    assert max(len(line) for line in text.splitlines()) <= 130


def test_hostile_names_stay_inside_their_literals(found):
    """Parsed, the file holds the very names; as text it is plain ASCII, and each comment is one line."""
    watched, other = (
        replace(a, request_id=name)
        for a, name in zip(found.failure.trial.play.arrivals, (HOSTILE, HOSTILE + "~1"), strict=False)
    )
    play = replace(found.failure.trial.play, arrivals=(watched, other))
    side = Side(play, (HOSTILE, 0))
    text = reproduction(
        replace(found, failure=Failure(side, side)),
        Subject(HOSTILE, "torch", "fp32", HOSTILE, None, HOSTILE),
    )
    assert text.isascii()
    assert not set(text) & {"\x1b", "\r", "\0"}
    tree = ast.parse(text)
    literals = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    assert {HOSTILE, HOSTILE + "~1"} <= literals
    imported = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    assert len(imported) == 4
    assert "REFERENCE, REFERENCE_CONFIG = TRIAL, TRIAL_CONFIG" in text


def test_settings_and_sampling_come_back_as_they_were(found):
    """The literals, evaluated, are the plays."""
    config = EngineConfig(
        num_blocks=9, threads=1, page_placement=PagePlacement.PERMUTED, placement_seed=4, free_pages=FreePages.NAN
    )
    load = replace(arrival("load", 60, temperature=0.7, top_p=0.9, stop=("\u2028",)), step=2, cancel_step=7)
    play = Play((arrival("p"), load), config)
    failure = replace(found.failure, trial=Side(play, ("p", 0)))
    source = reproduction(replace(found, failure=failure, threads=(1, 1)), SUBJECT)
    scope = {}
    exec(compile(source, "reproduction", "exec"), scope)
    assert tuple(scope["TRIAL"]) == play.arrivals
    assert scope["TRIAL_CONFIG"] == config
    assert tuple(scope["REFERENCE"]) == failure.reference.play.arrivals


def test_files_are_named_after_prompt_and_axis_and_never_overwrite_one():
    subject = replace(SUBJECT, prompt="../a.b\x1b c", axis=None)
    first = reproduction_name(subject, [])
    assert first == "reproduce_a_b_c_combined.py"
    assert reproduction_name(subject, [first]) == "reproduce_a_b_c_combined_2.py"
    assert reproduction_name(replace(SUBJECT, prompt="../.."), []) == "reproduce_prompt_batch_size.py"
    assert len(reproduction_name(replace(SUBJECT, prompt="x" * 300), [])) < 80
