"""Signals, torn lines, a second writer, a full disk, kill -9: the file always loads, and no finished line is lost."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from detharness.errors import UsageError
from detharness.eval.generate.store import Store
from detharness.targets.generation import GenerationError


def whole_lines(path: Path) -> bool:
    return path.read_bytes().endswith(b"\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_lets_what_runs_end_and_asks_nothing_more(asker, target, number):
    said = []

    def answer(request):
        if len(target.requests) == 5:
            os.kill(os.getpid(), number)
        return target.plain(request)

    target.answer = answer
    before = signal.getsignal(number)
    outcome = asker.ask(target, lambda: said.append("stopping"), concurrency=4)
    assert outcome.interrupted
    assert said == ["stopping"]
    assert len(asker.rows()) == len(target.requests) < 40
    assert signal.getsignal(number) == before
    assert asker.ask(target).progress.complete


def test_a_signal_ends_the_wait_for_another_attempt(asker, target, monkeypatch):
    monkeypatch.setattr("detharness.eval.generate.runner._wait", lambda attempt, asked_for: 3600.0)

    def answer(request):
        os.kill(os.getpid(), signal.SIGINT)
        raise GenerationError("http_500", "it broke", retriable=True)

    target.answer = answer
    outcome = asker.ask(target, concurrency=1)
    assert outcome.interrupted
    assert len(asker.rows()) == 1


def test_the_second_signal_stops_at_once_and_the_run_resumes(asker, target):
    async def hang(request):
        target.requests.append(request)
        if len(target.requests) < 10:
            return target.plain(request)
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.Event().wait()
        raise AssertionError("unreachable: nobody sets it")

    usual, target.generate = target.generate, hang
    with pytest.raises(KeyboardInterrupt):
        asker.ask(target, concurrency=1)
    assert target.closed
    assert len(asker.rows()) == 9
    target.generate = usual
    assert asker.ask(target).progress.complete


def test_a_torn_last_line_moves_aside_and_its_cell_is_asked_again(asker, target):
    asker.ask(target)
    path = asker.folder / "run" / "generations.jsonl"
    whole = path.read_bytes()
    root = asker.root()
    path.write_bytes(whole[:-20])
    kept = whole[: whole[:-1].rindex(b"\n") + 1]
    target.requests.clear()
    with Store(asker.plan(target)) as store:
        (side,) = store.torn
    assert kept + side.read_bytes() == whole[:-20]
    assert path.read_bytes() == kept
    assert asker.ask(target).progress.complete
    assert len(target.requests) == 1
    assert path.read_bytes().startswith(kept)
    assert asker.root() == root


def test_two_records_on_one_line_are_both_kept(asker, target):
    asker.ask(target)
    path = asker.folder / "run" / "generations.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0].rstrip(b"\n") + b"".join(lines[1:]))
    target.requests.clear()
    with Store(asker.plan(target)) as store:
        assert [damage.kind for damage in store.damages] == ["joined"]
        assert len(store.answered) == 40


def test_a_second_writer_is_kept_out(asker, target):
    with Store(asker.plan(target)), pytest.raises(UsageError, match="being written by another process"):
        Store(asker.plan(target))


def test_other_task_rows_are_refused(asker, target):
    asker.ask(target)
    path = asker.folder / "run" / "tasks.jsonl"
    path.write_bytes(path.read_bytes().replace(b"What", b"Whot", 1))
    with pytest.raises(UsageError, match="other task rows"):
        asker.ask(target)


def test_a_folder_of_something_else_is_refused_and_left_alone(asker, target):
    folder = asker.folder / "run"
    folder.mkdir()
    (folder / "thesis.txt").write_text("mine")
    with pytest.raises(UsageError, match="not empty"):
        asker.ask(target)
    assert [path.name for path in folder.iterdir()] == ["thesis.txt"]


CHILD = """
    import sys
    from pathlib import Path
    sys.path.insert(0, {tests!r})
    from conftest import Asker, ScriptedTarget
    target = ScriptedTarget()
    def answer(request):
        if 0 < {kill_at} <= len(target.requests):
            import os, signal
            os.kill(os.getpid(), signal.SIGKILL)
        return target.plain(request)
    target.answer = answer
    Asker(Path({folder!r})).ask(target, concurrency=3)
"""


def child(folder, *, kill_at=-1, **options):
    code = textwrap.dedent(CHILD).format(tests=str(Path(__file__).parent), folder=str(folder), kill_at=kill_at)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, **options)


@pytest.mark.parametrize("kill_at", [2, 17])
def test_kill_9_and_a_resume_give_the_root_of_an_uninterrupted_run(asker, target, kill_at):
    assert child(asker.folder, kill_at=kill_at).returncode == -signal.SIGKILL
    asker.ask(target)
    asker.ask(target, out=asker.folder / "whole")
    assert {row["session"] for row in asker.rows()} == {0, 1} if kill_at > 3 else {1}
    assert asker.root() == asker.root("whole")


def test_a_full_disk_stops_in_one_sentence_and_every_line_written_is_whole(asker, target):
    def little_room():
        resource.setrlimit(resource.RLIMIT_FSIZE, (12_000, 12_000))

    ended = child(asker.folder, preexec_fn=little_room)
    assert "UsageError: cannot write" in ended.stderr
    path = asker.folder / "run" / "generations.jsonl"
    assert whole_lines(path)
    assert 0 < len(asker.rows()) < 40
    kept = path.read_bytes()
    assert asker.ask(target).progress.complete
    assert path.read_bytes().startswith(kept)
