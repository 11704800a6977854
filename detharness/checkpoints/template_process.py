"""Keeps the template worker: starts it on first use, waits for it a limited time, and stops it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from detharness.errors import CheckpointError

TIME_LIMIT = 10.0
"""Seconds for one render. An ordinary one takes milliseconds."""

_WORKER = Path(__file__).with_name("template_worker.py")


class TemplateProcess:
    """One child process that renders templates; it ends with this object, or with this process.

    time_limit: seconds that one answer may take, start of the process included.
    """

    def __init__(self, time_limit: float = TIME_LIMIT) -> None:
        self.time_limit = time_limit
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._stop: weakref.finalize[..., Any] | None = None

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Send one request and return the worker's answer.

        ``{"error": "time"}`` if it does not answer in time, ``{"error": "died"}`` if it ends: the next request then
        gets a new worker. CheckpointError if none can be started.
        """
        with self._lock:
            process = self._start()
            assert process.stdin is not None
            try:
                process.stdin.write(json.dumps(request).encode() + b"\n")
                process.stdin.flush()
                line = self._read_line(process)
            except (TimeoutError, BrokenPipeError, EOFError) as error:
                self.close()
                kind = "time" if isinstance(error, TimeoutError) else "died"
                return {"error": kind, "message": "", "line": None}
            except BaseException:
                self.close()  # An interrupted request leaves an answer behind that belongs to nobody.
                raise
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """Stop the worker, if there is one."""
        if self._stop is not None:
            self._stop()
        self._process = self._stop = None

    def _start(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            try:
                process = subprocess.Popen(
                    [sys.executable, "-P", str(_WORKER)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    env={**os.environ, "PYTHONHASHSEED": "0", "PYTHONWARNINGS": "ignore"},
                    start_new_session=True,  # Ctrl-C is for this process to handle.
                )
            except OSError as error:
                raise CheckpointError(
                    f"cannot start a process to render the chat template ({error.strerror}): check the limits on "
                    "processes and memory"
                ) from None
            self._process = process
            self._stop = weakref.finalize(self, _end, process)
        return self._process

    def _read_line(self, process: subprocess.Popen[bytes]) -> bytes:
        assert process.stdout is not None
        descriptor = process.stdout.fileno()
        end = time.monotonic() + self.time_limit
        pieces: list[bytes] = []
        while not pieces or not pieces[-1].endswith(b"\n"):
            ready, _, _ = select.select([descriptor], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                raise TimeoutError
            piece = os.read(descriptor, 1 << 16)
            if not piece:
                raise EOFError
            pieces.append(piece)
        return b"".join(pieces)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        with contextlib.suppress(BrokenPipeError):  # What was still unsent belongs to a request that is over.
            pipe.close()
