"""Ctrl-C, twice: the first lets the trial in hand end, the second stops at once."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Self


class Interrupts:
    """While open, the first SIGINT sets ``asked`` and calls ``on_first``; the second raises KeyboardInterrupt.

    Opened in the main thread, the only one in which Python can set a handler.
    """

    def __init__(self, on_first: Callable[[], None]) -> None:
        self.asked = False
        self._stopping = False
        self._on_first = on_first
        self._before: object = None

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGINT, self._before)  # type: ignore[arg-type]  # What signal() itself returned.

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._stopping:
            return  # An impatient third one would only interrupt the way out.
        if self.asked:
            self._stopping = True
            raise KeyboardInterrupt
        self.asked = True
        self._on_first()
