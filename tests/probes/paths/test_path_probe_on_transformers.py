"""The probe of paths on transformers itself, its model replaced by a table look-up: what moves then was planted.

The library's own attention and cache run, and its generation loops and managers form the batches; but the logits are
the row of a table that the last token names. No sum is left that a batch could reorder: a sound library moves nothing.
"""

from __future__ import annotations

import json
from contextlib import nullcontext

import pytest
import torch

from detharness.cli.probe_transformers import probe_transformers
from detharness.errors import UsageError
from detharness.probes.page.junit import junit_xml
from detharness.probes.page.markdown import markdown_summary
from detharness.probes.page.page import probe_page
from detharness.probes.paths.runner import run
from detharness.probes.paths.settings import PathSettings, prepare
from detharness.probes.report import exit_code
from detharness.targets.resolve import resolve_paths
from detharness.targets.transformers_probe import TransformersPaths

PROMPTS = (
    '{"id": "a", "prompt": "tell me"}\n{"id": "b", "prompt": "a longer one, for padding"}\n{"id": "c", "prompt": "x"}\n'
)


def table_of_logits(vocab=264):
    return torch.randn(vocab, vocab, generator=torch.Generator().manual_seed(5))


def look_up(module, fault):
    """Replace what ``module`` computes by the look-up; ``fault(logits, inputs)`` gives logits in its place."""
    table, seen = table_of_logits(), {}

    def name_tokens(body, args, inputs, output):
        seen["mask"] = inputs.get("attention_mask")
        output.last_hidden_state = inputs["input_ids"].unsqueeze(-1).expand(output.last_hidden_state.shape).float()
        return output

    def read_table(head, args, output):
        return fault(table[args[0][..., 0].long()], seen["mask"])

    module.model.register_forward_hook(name_tokens, with_kwargs=True)
    module.lm_head.register_forward_hook(read_table)


def sound(logits, mask):
    return logits


def other_by_rows(logits, mask):
    """Of ``generate``: its logits are [rows, tokens, V]."""
    return logits.roll(1, -1) if logits.shape[0] > 1 else logits


def other_by_company(logits, mask):
    """Of the manager: its logits are [1, requests, V]; a prompt alone draws from one row of it."""
    return logits.roll(1, -1) if logits.shape[1] > 1 else logits


def other_by_padding(logits, mask):
    return logits.roll(1, -1) if mask is not None and bool((mask == 0).any()) else logits


@pytest.fixture
def probe(tiny_folder, tmp_path):
    """``probe(generating=fault, batching=fault)``: the report of a probe of the look-up under transformers."""

    def made(generating=sound, batching=sound, **options):
        def resolve(text, dtype):
            target = TransformersPaths(text.partition(":")[2], dtype)
            look_up(target._generating, generating)
            look_up(target._batching, batching)
            return target

        prompts = tmp_path / "prompts.jsonl"
        prompts.write_text(PROMPTS)
        settings = {"dtype": "fp32", "max_tokens": 5, "prompts": prompts, "out": tmp_path / "out", **options}
        plan = prepare(PathSettings(target=f"hf:{tiny_folder('llama')}", **settings), resolve)
        return run(plan, lambda total: nullcontext(lambda note: None), lambda: None).report

    return made


def moved_levels(report, axis):
    return {level for level, found in report["arms"][0]["axes"][axis]["levels"].items() if found["diverged"]}


def test_a_sound_library_moves_no_bit_on_any_path_and_every_path_is_exercised(probe):
    report = probe()
    assert {name: axis["status"] for name, axis in report["axes"].items()} == {
        "run_to_run": "identical",
        "padded_batch": "identical",
        "continuous_batching": "identical",
    }
    padded = report["axes"]["padded_batch"]["exercised"]
    assert padded["rows"] == [1, 2, 5]
    assert {0, 1, 32} <= set(padded["pad_widths"])
    assert report["axes"]["continuous_batching"]["exercised"]["requests_per_pass"] == [1, 2, 4]
    assert report["effective_config"]["logits_compared"]
    assert exit_code(report, interrupted=False) == 0


@pytest.mark.parametrize(
    ("faults", "axis", "levels"),
    [
        ({"generating": other_by_rows}, "padded_batch", {"copies=2", "copies=5", "longer", "ragged"}),
        ({"generating": other_by_padding}, "padded_batch", {"pads=1", "pads=32", "longer", "ragged"}),
        ({"batching": other_by_company}, "continuous_batching", {"batch=4", "arrivals"}),
        ({"batching": lambda logits, mask: logits.roll(1, -1)}, "continuous_batching", {"alone"}),
    ],
)
def test_a_planted_fault_is_found_on_its_path_and_nowhere_else(probe, faults, axis, levels):
    report = probe(**faults)
    assert moved_levels(report, axis) == levels
    assert {name for name, found in report["axes"].items() if found["status"] == "diverged"} == {axis}
    assert report["arms"][0]["axes"][axis]["first_token_divergence"] is not None
    assert exit_code(report, interrupted=False) == 1


def test_short_replies_let_late_requests_in(probe):
    report = probe(max_tokens=2, axes="continuous_batching")
    assert report["axes"]["continuous_batching"]["status"] == "identical"


def test_a_report_of_paths_is_read_by_every_kind_of_summary(probe):
    report = probe(generating=other_by_rows)
    for text in (probe_page(report), junit_xml(report).decode(), markdown_summary(report)):
        assert "padded_batch" in text
        assert "transformers" in text


def test_the_command_prints_the_report_and_ends_with_its_json(tiny_folder, tmp_path, capsys):
    prompts = tmp_path / "p.txt"
    prompts.write_text("one prompt\nanother one\n")
    options = {"prompts": prompts, "dtype": "bf16", "max_tokens": 4, "axes": "all", "out": tmp_path / "out"}
    code = probe_transformers(f"hf:{tiny_folder('llama')}", options, json=True)
    lines = capsys.readouterr().out.splitlines()
    report = json.loads(lines[-1])
    # What the library does is the host's affair; that all of it was looked at is not.
    assert code == report["exit_code"] == (1 if report["verdict"] == "diverged" else 0)
    assert {axis["reason"] for axis in report["axes"].values()} == {None}
    assert report["target"]["model"] == f"hf:{tiny_folder('llama').name}"
    assert report["arms"][0]["backend"].startswith("transformers 5.")
    assert str(tmp_path) not in lines[-1]


@pytest.mark.parametrize("text", ["hf:", "engine:x", "hf"])
def test_a_target_of_another_form_is_refused(text):
    with pytest.raises(UsageError, match="a transformers target is hf:MODEL"):
        resolve_paths(text, "fp32")
