"""Records on their way to the disk: written by a thread of their own, so that no sync delays what is being sent."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

from detharness.records.jsonl import JsonlWriter
from detharness.records.run_folder import RunFolder

REPLIES = "replies"
TRIALS = "trials"


class Journal:
    """Two files: ``replies.jsonl``, every reply and error as it came, and ``trials.jsonl``, what comparisons found.

    Rows are written in the order in which they were added. An error of the disk is raised by the next ``add``, or on
    closing.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._writers: dict[str, JsonlWriter] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="records")
        self._last: Future[None] | None = None
        for name in (REPLIES, TRIALS):
            self._writers[name] = folder.records(name)

    def add(self, name: str, row: Mapping[str, Any]) -> None:
        """Queue one row, which must not be changed any more."""
        if self._last is not None and self._last.done():
            self._last.result()
        self._last = self._thread.submit(self._write, self._last, name, row)

    def _write(self, before: Future[None] | None, name: str, row: Mapping[str, Any]) -> None:
        if before is not None:
            before.result()  # One that failed fails all behind it: no row may be missing from the middle.
        self._writers[name].append(row)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.shutdown(wait=True)
        for writer in self._writers.values():
            writer.close()
        if self._last is not None and error is None:
            self._last.result()
