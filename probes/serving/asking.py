"""Sends requests within the budget: waits when the server says so, counts who ran beside whom, gives up in order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from detharness.probes.serving.budget import Budget, Halted
from detharness.probes.serving.durations import Durations
from detharness.targets.serving import GenerationError, ServedReply, ServedRequest, ServedToken, ServingTarget

Result = TypeVar("Result")

_TRIES = 6
_FIRST_WAIT, _LONGEST_WAIT = 1.0, 60.0  # Seconds after a 429 without Retry-After: 1, 2, 4, ...
_BUSY = ("http_429", "http_503")


@dataclass(frozen=True)
class Answer:
    """What became of one request. ``beside``: others in flight at some time while it was.

    Exactly one of reply and error is there. tries: how often it was sent.
    """

    reply: ServedReply | None
    error: GenerationError | None
    beside: int
    tries: int


class Asker:
    """One target, asked within one budget. Every count is of this client: others may use the server, too.

    advance: told of each request that is done, with what it was for, which ``doing`` says.
    """

    def __init__(self, target: ServingTarget, budget: Budget, advance: Callable[[str], None]) -> None:
        self.doing = "capabilities"
        self._target = target
        self._budget = budget
        self._advance = advance
        self._loop = asyncio.get_running_loop()
        self._paused_until = 0.0
        self._in_flight = 0
        self._started = 0
        self.most_in_flight = 0
        self.waited_for_server = 0.0
        self.durations = Durations()

    async def ask(self, request: ServedRequest) -> Answer:
        """One request, sent again only where the server is busy and says when to come back; Halted at the run's end."""
        for number in range(1, _TRIES + 1):
            await self._wait_for_server()
            self._budget.take()
            ahead, started = self._in_flight, self._started
            self._in_flight += 1
            self._started += 1
            self.most_in_flight = max(self.most_in_flight, self._in_flight)
            try:
                reply = await self._in_time(self._target.ask(request))
            except GenerationError as error:
                self._budget.failed()
                if error.kind in _BUSY and number < _TRIES:
                    self._pause(error.retry_after, number)
                    continue
                self._advance(self.doing)
                return Answer(None, error, ahead + self._started - started - 1, number)
            finally:
                self._in_flight -= 1
            self._budget.answered()
            self._advance(self.doing)
            self.durations.add(reply.seconds)
            return Answer(reply, None, ahead + self._started - started - 1, number)
        raise AssertionError("unreachable: the last try returns")

    async def tokenize(self, text: str) -> tuple[int, ...] | None:
        """The server's tokens of ``text``; None where it has none, or did not answer."""
        return await self._quietly(lambda: self._target.tokenize(text))

    async def score(self, prompt: str, continuation: str) -> tuple[ServedToken, ...] | None:
        """The server's scores of ``continuation`` behind ``prompt``; None where it has none, or did not answer."""
        return await self._quietly(lambda: self._target.score(prompt, continuation))

    async def _quietly(self, call: Callable[[], Awaitable[Result | None]]) -> Result | None:
        await self._wait_for_server()
        self._budget.take()
        try:
            return await self._in_time(call())
        except GenerationError:
            return None
        finally:
            self._advance(self.doing)

    async def _in_time(self, waiting: Awaitable[Result]) -> Result:
        try:
            async with asyncio.timeout_at(self._budget.deadline):
                return await waiting
        except TimeoutError:
            self._budget.end("seconds")
            raise Halted from None

    def _pause(self, retry_after: float | None, tries: int) -> None:
        wait = min(_FIRST_WAIT * 2 ** (tries - 1), _LONGEST_WAIT) if retry_after is None else retry_after
        until = self._loop.time() + wait
        if until > self._paused_until:
            self.waited_for_server += until - max(self._paused_until, self._loop.time())
            self._paused_until = until

    async def _wait_for_server(self) -> None:
        """Nobody is sent while the server has asked for patience."""
        while self._paused_until > self._loop.time():
            await self._budget.sleep_until(self._paused_until)
