"""Run folders: never an old one, nothing half-written, one plain sentence for a folder that cannot serve."""

import errno
import json
import os
from pathlib import Path

import pytest

from detharness.errors import UsageError
from detharness.records.atomic import write_atomic
from detharness.records.run_folder import ExistingRun, RunFolder

MANIFEST = {"command": "probe", "effective_config": {"max_tokens": 48, "temperature": 0.0}}


def test_a_new_folder_each_time_and_never_an_old_one(tmp_path):
    root = tmp_path / "runs"
    (root / "probe-0002").mkdir(parents=True)
    first = RunFolder.open("probe", MANIFEST, root=root)
    second = RunFolder.open("probe", MANIFEST, root=root)
    assert [first.path.name, second.path.name] == ["probe-0001", "probe-0003"]
    assert not first.resumed
    assert list((root / "probe-0002").iterdir()) == []
    assert json.loads((first.path / "manifest.json").read_bytes()) == MANIFEST


def test_the_same_values_give_the_same_bytes_wherever_the_run_stands(tmp_path):
    contents = []
    for name in ("here", "there"):
        run = RunFolder.open("probe", dict(reversed(MANIFEST.items())), out=tmp_path / name / "deep")
        run.write_report({"verdict": "identical", "arms": []})
        run.write_timing({"seconds": 1.5})
        contents.append({file.name: file.read_bytes() for file in run.path.iterdir()})
    assert contents[0] == contents[1]
    assert sorted(contents[0]) == ["manifest.json", "report.json", "timing.json"]


def test_an_empty_folder_may_be_used(tmp_path):
    assert not RunFolder.open("probe", MANIFEST, out=tmp_path).resumed
    assert (tmp_path / "manifest.json").exists()


def test_records_open_in_the_folder(tmp_path):
    run = RunFolder.open("probe", MANIFEST, out=tmp_path)
    with run.records("trials") as writer:
        writer.append({"a": 1})
    assert (tmp_path / "trials.jsonl").read_bytes() == b'{"a":1}\n'


def test_only_a_command_that_resumes_takes_its_own_run_again(tmp_path):
    RunFolder.open("probe", MANIFEST, out=tmp_path)
    with pytest.raises(UsageError, match="is not empty"):
        RunFolder.open("probe", MANIFEST, out=tmp_path)
    assert RunFolder.open("probe", MANIFEST, out=tmp_path, existing=ExistingRun.RESUME).resumed


@pytest.mark.parametrize(
    "other",
    [
        {**MANIFEST, "effective_config": {"max_tokens": 49, "temperature": 0.0}},
        {**MANIFEST, "effective_config": {"max_tokens": 48, "temperature": 0}},
        {"command": "probe"},
    ],
)
def test_a_run_of_another_configuration_is_refused_and_kept(tmp_path, other):
    RunFolder.open("probe", MANIFEST, out=tmp_path)
    before = (tmp_path / "manifest.json").read_bytes()
    with pytest.raises(UsageError, match=r"another configuration \(effective_config differs\)"):
        RunFolder.open("probe", other, out=tmp_path, existing=ExistingRun.RESUME)
    assert (tmp_path / "manifest.json").read_bytes() == before


@pytest.mark.parametrize("content", [None, b'{"torn":', b"[]"])
def test_a_folder_of_something_else_is_refused_and_kept(tmp_path, content):
    (tmp_path / "notes.txt").write_text("mine")
    if content is not None:
        (tmp_path / "manifest.json").write_bytes(content)
    before = sorted(tmp_path.iterdir())
    for existing in ExistingRun:
        with pytest.raises(UsageError):
            RunFolder.open("probe", MANIFEST, out=tmp_path, existing=existing)
    assert sorted(tmp_path.iterdir()) == before


def test_a_file_in_the_folders_place_is_refused(tmp_path):
    (tmp_path / "out").write_text("mine")
    with pytest.raises(UsageError, match="is a file"):
        RunFolder.open("probe", MANIFEST, out=tmp_path / "out")
    with pytest.raises(UsageError, match="Not a directory"):
        RunFolder.open("probe", MANIFEST, out=tmp_path / "out" / "below")


@pytest.mark.parametrize("place", [{"out": Path("/proc/run")}, {"root": Path("/proc/runs")}])
def test_an_unwritable_place_is_refused(place):
    # The kernel refuses new names in /proc to every user, so this holds where tests run as root, too.
    with pytest.raises(UsageError, match=r"cannot write the output folder /proc/runs?: .*--out"):
        RunFolder.open("probe", MANIFEST, **place)


def test_a_value_without_canonical_form_leaves_no_folder(tmp_path):
    with pytest.raises(ValueError, match="nan"):
        RunFolder.open("probe", {"gap": float("nan")}, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, step):
    run = RunFolder.open("probe", MANIFEST, out=tmp_path)
    run.write_report({"verdict": "identical"})

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(*((os, "fsync") if step == "fsync" else (Path, "replace")), full)
    with pytest.raises(UsageError, match=r"cannot write .*report\.json: No space left"):
        run.write_report({"verdict": "diverged"})
    assert sorted(file.name for file in tmp_path.iterdir()) == ["manifest.json", "report.json"]
    assert (tmp_path / "report.json").read_bytes() == b'{"verdict":"identical"}\n'


def test_a_killed_writer_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "report.json"
    write_atomic(path, b"old")

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", killed)
    with pytest.raises(KeyboardInterrupt):
        write_atomic(path, b"new")
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [("report.json", b"old")]
