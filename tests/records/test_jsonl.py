"""Append-only JSONL: whole lines, one writer, a torn tail kept aside, errors that name file and line."""

import errno
import os
import subprocess
import sys

import pytest

from detharness.errors import UsageError
from detharness.records.jsonl import JsonlRow, JsonlWriter, read_jsonl


def test_rows_come_back_with_their_line_numbers(tmp_path):
    path = tmp_path / "trials.jsonl"
    with JsonlWriter(path) as writer:
        writer.append({"b": 1, "a": "one\u2028line\nonly"})
    with JsonlWriter(path) as writer:
        assert writer.torn_tail is None
        writer.append({"c": None})
    assert path.read_bytes().count(b"\n") == 2
    assert list(read_jsonl(path)) == [
        JsonlRow(1, {"a": "one\u2028line\nonly", "b": 1}),
        JsonlRow(2, {"c": None}),
    ]


def test_a_second_writer_is_refused_until_the_first_closes(tmp_path):
    path = tmp_path / "trials.jsonl"
    script = (
        "import sys, pathlib\n"
        "from detharness.errors import UsageError\n"
        "from detharness.records.jsonl import JsonlWriter\n"
        "try:\n"
        "    JsonlWriter(pathlib.Path(sys.argv[1])).close()\n"
        "except UsageError as error:\n"
        "    print(error)\n"
        "else:\n"
        "    print('opened')\n"
    )

    def other_process() -> str:
        return subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True, check=True).stdout

    with JsonlWriter(path) as writer:
        writer.append({"a": 1})
        assert "another process" in other_process()
        with pytest.raises(UsageError, match=r"trials\.jsonl is being written"):
            JsonlWriter(path)
    assert other_process() == "opened\n"


@pytest.mark.parametrize("cut", range(1, len(b'{"row":2}\n')))
def test_a_torn_tail_is_moved_aside_at_every_cut(tmp_path, cut):
    path = tmp_path / "trials.jsonl"
    path.write_bytes(b'{"row":1}\n' + b'{"row":2}\n'[:-cut])
    with JsonlWriter(path) as writer:
        writer.append({"row": 3})
    assert path.read_bytes() == b'{"row":1}\n{"row":3}\n'
    assert writer.torn_tail == tmp_path / "trials.jsonl.torn-1"
    assert writer.torn_tail.read_bytes() == b'{"row":2}\n'[:-cut]


def test_a_second_torn_tail_does_not_replace_the_first(tmp_path):
    path = tmp_path / "trials.jsonl"
    for tail in (b'{"a', b'{"b'):
        path.write_bytes(tail)
        JsonlWriter(path).close()
    assert path.read_bytes() == b""
    assert (tmp_path / "trials.jsonl.torn-1").read_bytes() == b'{"a'
    assert (tmp_path / "trials.jsonl.torn-2").read_bytes() == b'{"b'


def test_one_write_per_row_and_a_sync_at_the_interval_and_on_close(tmp_path, monkeypatch):
    calls = []
    real_write, real_fsync = os.write, os.fsync
    writer = JsonlWriter(tmp_path / "trials.jsonl", sync_every=2)
    monkeypatch.setattr(os, "write", lambda fd, data: (calls.append(bytes(data)), real_write(fd, data))[1])
    monkeypatch.setattr(os, "fsync", lambda fd: (calls.append("sync"), real_fsync(fd))[1])
    for row in range(3):
        writer.append({"row": row})
    writer.close()
    assert calls == [b'{"row":0}\n', b'{"row":1}\n', "sync", b'{"row":2}\n', "sync"]


def test_a_part_of_a_line_is_taken_back_when_the_disk_is_full(tmp_path, monkeypatch):
    path = tmp_path / "trials.jsonl"
    real_write = os.write
    with JsonlWriter(path) as writer:
        writer.append({"row": 1})
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", lambda fd, data: real_write(fd, data[:4]))
            with pytest.raises(UsageError, match=r"cannot write .*trials\.jsonl: the disk took only a part"):
                writer.append({"row": 2})
        writer.append({"row": 3})
    assert path.read_bytes() == b'{"row":1}\n{"row":3}\n'


def test_a_disk_that_takes_nothing_is_one_plain_sentence(tmp_path, monkeypatch):
    def full(descriptor, data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with JsonlWriter(tmp_path / "trials.jsonl") as writer, monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(UsageError, match=r"cannot write .*trials\.jsonl: No space left"):
            writer.append({"row": 1})


@pytest.mark.parametrize(
    ("line", "phrase"),
    [
        (b'{"a":1,"a":2}', "the key 'a' stands twice"),
        (b"[1]", "each line must be a JSON object"),
        (b"{'a':1}", "not valid JSON"),
        (b'{"a":NaN}', "not valid JSON"),
        (b'{"a":"\xff"}', "not valid JSON"),
        (b'{"a":1', "not valid JSON"),
    ],
)
def test_a_bad_row_is_named_by_file_and_line(tmp_path, line, phrase):
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(b'{"ok":1}\r\n\n' + line + b"\n")
    rows = read_jsonl(path)
    assert next(rows) == JsonlRow(1, {"ok": 1})
    with pytest.raises(UsageError, match=rf"prompts\.jsonl, line 3: {phrase}"):
        next(rows)


def test_files_that_cannot_be_opened_are_named(tmp_path):
    with pytest.raises(UsageError, match=r"cannot read .*gone\.jsonl: No such file"):
        next(read_jsonl(tmp_path / "gone.jsonl"))
    with pytest.raises(UsageError, match=r"cannot write .*: Is a directory"):
        JsonlWriter(tmp_path)
