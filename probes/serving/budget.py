"""What a run may send, and when it ends before its time: in requests, in seconds, by a person, by a dead server."""

from __future__ import annotations

import asyncio
from typing import Literal

from detharness.errors import UsageError

Ending = Literal["requests", "seconds", "interrupted", "server"]

_GONE_AFTER = 20  # Requests in a row without a reply: a server that is gone, not one that refuses some.


class Halted(Exception):  # noqa: N818  # A way out, and no error.
    """The run has ended: nothing more is sent."""


class Budget:
    """Counts what is sent and says when to end; ``ended`` is the first reason. Made inside the event loop.

    max_requests: every try counts. max_seconds: from now on; what is in flight then is given up.
    """

    def __init__(self, max_requests: int | None, max_seconds: float | None) -> None:
        if max_requests is not None and max_requests < 1:
            raise UsageError(f"--max-requests must be at least 1, got {max_requests}")
        self.sent = 0
        self.ended: Ending | None = None
        self._max_requests = max_requests
        self._failures = 0
        self._loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        self._deadline = None if max_seconds is None else self._loop.time() + max_seconds

    @property
    def deadline(self) -> float | None:
        """The loop's time at which everything must have ended."""
        return self._deadline

    def end(self, reason: Ending) -> None:
        """Send nothing more from now on."""
        self.ended = self.ended or reason
        self._over.set()

    def end_from_signal(self) -> None:
        """``end`` of an interrupt, callable from a signal handler: it wakes the loop."""
        self._loop.call_soon_threadsafe(self.end, "interrupted")

    def take(self) -> None:
        """Account for one request that is about to be sent; Halted where there may be none."""
        if self.ended is None and self._max_requests is not None and self.sent >= self._max_requests:
            self.end("requests")
        if self.ended is None and self._deadline is not None and self._loop.time() >= self._deadline:
            self.end("seconds")
        if self.ended is not None:
            raise Halted
        self.sent += 1

    def answered(self) -> None:
        """A request got its reply."""
        self._failures = 0

    def failed(self) -> None:
        """A request got none; many in a row end the run."""
        self._failures += 1
        if self._failures >= _GONE_AFTER:
            self.end("server")

    async def sleep_until(self, when: float) -> None:
        """Wait until the loop's time ``when``; Halted as soon as the run ends."""
        if self._deadline is not None and when > self._deadline:
            when, late = self._deadline, True
        else:
            late = False
        try:
            async with asyncio.timeout_at(when):
                await self._over.wait()
        except TimeoutError:
            if late:
                self.end("seconds")
        if self.ended is not None:
            raise Halted
