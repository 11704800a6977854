"""Files that are whole or absent, and the question whether one could be written."""

from __future__ import annotations

import os

import pytest

from detharness.errors import UsageError
from detharness.records.atomic import check_writable, write_atomic


def test_a_check_leaves_no_trace_and_no_change(tmp_path):
    old = tmp_path / "old"
    old.write_text("kept")
    check_writable(tmp_path / "new", "--html")
    check_writable(old, "--html")
    assert [path.name for path in tmp_path.iterdir()] == ["old"]
    assert old.read_text() == "kept"
    write_atomic(old, b"replaced")
    assert old.read_text() == "replaced"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("missing/file", "No such file or directory"),
        ("file/below", "Not a directory"),
        ("folder", "is not a regular file"),
        ("pipe", "is not a regular file"),
        (".", "is not a regular file"),
        ("x" * 300, "File name too long"),
    ],
)
def test_what_cannot_be_written_is_refused_with_its_option(tmp_path, name, why):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match=rf"--html .*{why}"):
        check_writable(tmp_path / name, "--html")
