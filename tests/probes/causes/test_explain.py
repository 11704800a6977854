"""A run with --localize and --shrink: what is written of each axis's first divergence, and what a person reads."""

from contextlib import nullcontext

import pytest

from detharness.probes.causes.sentences import cause_lines
from detharness.probes.report import build_report
from detharness.probes.runner import run
from detharness.records.canonical import canonical_bytes, read_json
from detharness.records.jsonl import read_jsonl


def play(plan):
    return run(plan, lambda total: nullcontext(lambda note: None), lambda: None)


def rows_of(folder, name):
    return [row.value for row in read_jsonl(folder / f"{name}.jsonl")]


@pytest.fixture(scope="module")
def explained(tiny_target, tmp_path_factory):
    """A run over the library kernels, which move with the number of rows on every host we know."""
    from detharness.probes.settings import ProbeSettings, prepare

    folder = tmp_path_factory.mktemp("explained")
    (folder / "p.jsonl").write_text('{"id": "a.b", "prompt": "a story of a harbour and of its boats"}\n')
    settings = ProbeSettings(
        target="engine:tiny",
        prompts=folder / "p.jsonl",
        axes="batch_size",
        kernels="both",
        dtype="fp32",
        max_tokens=6,
        localize=True,
        shrink=True,
        out=folder / "run",
    )
    return play(prepare(settings, lambda text, kernels, dtype: tiny_target("llama", kernels, dtype)))


def test_the_control_that_moved_is_explained_and_the_sound_subject_is_not(explained):
    (cause,) = explained.report["causes"]
    assert (cause["arm"], cause["axis"], cause["prompt"]) == ("torch/fp32", "batch_size", "a.b")
    assert cause["status"] == "found"
    assert cause["operator"].split(".")[0] in ("linear", "attention")
    assert cause["schedule"]["trial"]["requests_in_step"] > cause["schedule"]["reference"]["requests_in_step"] == 1
    assert cause["shrunk"]["minimal"]
    assert cause["shrunk"]["after"]["prompt_tokens"] < cause["shrunk"]["before"]["prompt_tokens"]
    assert cause["shrunk"]["replays"] <= cause["shrunk"]["most_replays"]
    assert (explained.folder / cause["shrunk"]["file"]).is_file()
    assert cause["shrunk"]["file"] == "reproduce_a_b_batch_size.py"


def test_the_report_is_what_manifest_trials_and_causes_say(explained):
    rows = rows_of(explained.folder, "trials") + rows_of(explained.folder, "causes")
    again = build_report(read_json(explained.folder / "manifest.json"), rows)
    assert canonical_bytes(again) + b"\n" == (explained.folder / "report.json").read_bytes()
    assert str(explained.folder.parent) not in (explained.folder / "causes.jsonl").read_text()


def test_a_person_reads_operator_schedule_and_file(explained):
    localized, shrunk = cause_lines(explained.report["causes"])
    assert localized.startswith("torch/fp32, batch_size, prompt a.b: the first operator that differs is ")
    assert "elements moved: " in localized
    assert shrunk.endswith("(nothing smaller fails): reproduce_a_b_batch_size.py")


@pytest.mark.parametrize(
    ("status", "part"),
    [
        ("not_repeated", "played again, the two replies agreed"),
        ("not_reproduced", "not reproduced while every operator is observed, one by one (observing changed the bits)"),
        ("unexplained", "every operator, the logprobs and the draw agree, and the replies do not"),
    ],
)
def test_what_could_not_be_localised_is_said(status, part):
    cause = {"arm": "a", "axis": None, "prompt": "p", "status": status, "same_bits_observed": False, "shrunk": None}
    (line,) = cause_lines([cause])
    assert part in line
    assert line.startswith("a, several things at once, prompt p: ")


def test_every_axis_shrinks_to_less_and_is_still_that_axis(mini_target, make_plan, faults, tmp_path):
    """One fault at a time, on the toy; the shrunken trial differs from its reference as the axis does."""
    for number, (fault, (axis, _)) in enumerate(faults.items()):
        plan = make_plan(
            mini_target(fault=fault), kernels="invariant", axes=axis, shrink=True, out=tmp_path / f"run{number}"
        )
        causes = [cause for cause in play(plan).report["causes"] if cause["axis"] == axis]
        assert len(causes) == (axis != "run_to_run"), fault
        if axis == "run_to_run":  # A second run of one script cannot be told from the first by the script.
            continue
        shrunk = causes[0]["shrunk"]
        assert shrunk["minimal"] or shrunk["replays"] == shrunk["most_replays"], fault
        assert shrunk["minimal"] or "24 requests" in fault, fault  # Its neighbours alone take all replays.
        assert shrunk["after"]["prompt_tokens"] < shrunk["before"]["prompt_tokens"], fault
        assert shrunk["after"]["reply_tokens"] <= shrunk["before"]["reply_tokens"], fault
        assert causes[0]["status"] is None


def test_nothing_is_written_where_nothing_was_asked(mini_target, make_plan):
    outcome = play(make_plan(mini_target(fault="slot read"), kernels="invariant", axes="slot"))
    assert outcome.report["causes"] == []
    assert not (outcome.folder / "causes.jsonl").exists()
    assert list(outcome.folder.glob("reproduce*")) == []


def test_sound_kernels_have_no_causes(mini_target, make_plan):
    outcome = play(make_plan(mini_target(), kernels="invariant", axes="slot", shrink=True))
    assert outcome.report["causes"] == []
    assert rows_of(outcome.folder, "causes") == []
