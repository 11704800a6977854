"""Asking a judge: each question once, several at a time, again after a failure that may pass, and every reply kept."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from detharness.eval.grade.judge_cache import CachedReply, JudgeCache, JudgeIdentity, JudgeKey, cache_row
from detharness.eval.grade.judge_prompt import JudgeReply, JudgeTemplate, parse_judge_reply
from detharness.targets.generation import GenerationError, GenerationRequest, GenerationTarget

MAX_TOKENS = 4096
PARAMS = {"temperature": 0.0, "max_tokens": MAX_TOKENS}

_TRIES = 5
_FIRST_PAUSE = 1.0  # Seconds; doubled after each try, and shared out at random between half of it and all of it.
_LONGEST_PAUSE = 60.0
_GIVE_UP_AFTER = 10  # Questions in a row without one reply: the judge is down, and 2,500 would fail alike.


@dataclass(frozen=True)
class Question:
    """A response that waits for a judge; ``load`` gives (question, response, correct answer) when it is its turn."""

    row_digest: str
    response_digest: str
    load: Callable[[], tuple[str, str, str]]


@dataclass(frozen=True)
class Opinions:
    """What the judge said to one question, a reply for each repeat; None where it gave none.

    failure: why the last one that is missing is, as (kind, plain sentence).
    """

    replies: tuple[JudgeReply | None, ...]
    failure: tuple[str, str] | None = None


@dataclass(frozen=True)
class Line:
    """The way to a judge that can be asked. keep: gets the cache row of each new reply before anybody sees it."""

    target: GenerationTarget
    template: JudgeTemplate
    keep: Callable[[Mapping[str, Any]], None]
    concurrency: int = 8
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep


class Judge:
    """One judge. Replies come from ``cache``; what is not there is asked over ``line``, unless that is None.

    repeats: how often each question is put. calls: requests sent so far, failed ones too.
    """

    def __init__(self, identity: JudgeIdentity, cache: JudgeCache, line: Line | None, *, repeats: int = 1) -> None:
        self.identity = identity
        self.repeats = repeats
        self.calls = 0
        self._cache = cache
        self._line = line
        self._failed_in_a_row = 0
        self._jitter = random.Random()

    @property
    def asks(self) -> bool:
        """Whether it can be asked at all, or only replayed."""
        return self._line is not None

    async def close(self) -> None:
        """Release the line."""
        if self._line is not None:
            await self._line.target.close()

    async def opinions(self, questions: Iterator[Question], done: Callable[[], None]) -> dict[Question, Opinions]:
        """Answer every question; ``done`` is called after each. Order and concurrency cannot change what comes back."""
        found: dict[Question, Opinions] = {}

        async def work() -> None:
            for question in questions:  # The workers share one iterator, so each question has one worker.
                found[question] = await self._opinions_of(question)
                done()

        await asyncio.gather(*(work() for _ in range(1 if self._line is None else self._line.concurrency)))
        return found

    async def _opinions_of(self, question: Question) -> Opinions:
        replies: list[JudgeReply | None] = []
        failure = None
        for repeat in range(self.repeats):
            key = JudgeKey(self.identity.digest, question.row_digest, question.response_digest, repeat)
            cached = self._cache.replies.get(key)
            if cached is None and self._line is not None:
                answer = await self._ask(question, key, self._line)
                if isinstance(answer, CachedReply):
                    cached = answer
                else:
                    failure = answer
            replies.append(None if cached is None else _read(cached))
        return Opinions(tuple(replies), failure)

    async def _ask(self, question: Question, key: JudgeKey, line: Line) -> CachedReply | tuple[str, str]:
        """The reply, or what went wrong."""
        if self._failed_in_a_row >= _GIVE_UP_AFTER:
            return "not_asked", f"the {_GIVE_UP_AFTER} responses before it got no reply"
        text, response, correct_answer = question.load()
        prompt = line.template.fill(question=text, response=response, correct_answer=correct_answer)
        request = GenerationRequest(messages=[{"role": "user", "content": prompt}], max_tokens=MAX_TOKENS)
        for tried in range(1, _TRIES + 1):
            self.calls += 1
            wait = 0.0
            try:
                reply = await line.target.generate(request)
            except GenerationError as error:
                failure, again, wait = (error.kind, str(error)), error.retriable, error.retry_after or 0.0
            else:
                cached = CachedReply(reply.text, reply.finish_reason)
                if _read(cached).status != "failed":
                    self._failed_in_a_row = 0
                    self._cache.replies[key] = cached
                    line.keep(cache_row(self.identity, key, cached))
                    return cached
                failure, again = ("bad_response", "the judge's server put an error message in the reply"), True
            if not again or tried == _TRIES:
                break
            pause = _FIRST_PAUSE * 2 ** (tried - 1) * self._jitter.uniform(0.5, 1.0)
            await line.sleep(min(_LONGEST_PAUSE, max(pause, wait)))
        self._failed_in_a_row += 1
        return failure


def _read(cached: CachedReply) -> JudgeReply:
    """The reply as an opinion; one that was cut off at its token limit is none."""
    return JudgeReply("unparsed") if cached.finish_reason == "length" else parse_judge_reply(cached.text)
