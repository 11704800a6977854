"""A server in this process: the scripted model behind the ServingTarget protocol, with one fault to switch on each.

It runs in virtual time: a reply takes a fixed number of seconds that no clock spends, so what is in flight together is
fixed by the requests alone.
"""

from __future__ import annotations

import asyncio
import hashlib
import selectors
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
import scripted_model as model

from detharness.probes.serving.runner import Display, Outcome, run
from detharness.probes.serving.settings import ServerSettings, prepare
from detharness.targets.serving import ServedReply, ServedRequest, ServedToken

PAGE = 16


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer when nothing else is to be done."""

    def __init__(self) -> None:
        self._now = 0.0
        loop = self

        class Selector(selectors.DefaultSelector):  # type: ignore[misc, valid-type]
            def select(self, timeout: float | None = None) -> list[Any]:
                ready = super().select(0 if timeout is not None else None)
                if not ready and timeout:
                    loop._now += timeout
                return ready

        super().__init__(Selector())

    def time(self) -> float:
        return self._now


@dataclass
class FakeServer:
    """What it can do, and what is wrong with it. As it stands everything works, and nothing moves.

    with_company, after_hit, by_itself: how far logits drift beside other requests, after a cache hit, and in a share
    ``noise_rate`` of all requests. error: the number of a request (from 1) -> what is raised in its place.
    """

    api: str = "chat"
    ids: bool = True
    logprobs: bool = True
    usage: bool = True
    seeds: bool = True
    cache: bool = True
    cached_told: bool = True
    salts: bool = True
    tokenizes: bool = True
    scores: bool = True
    with_company: float = 0.0
    after_hit: float = 0.0
    by_itself: float = 0.0
    noise_rate: float = 1.0
    seconds: float = 1.0
    error: Callable[[int], BaseException | None] = lambda number: None
    asked: list[ServedRequest] = field(default_factory=list)
    calls: Counter[str] = field(default_factory=Counter)
    times: list[float] = field(default_factory=list)
    most_in_flight: int = 0
    closed: bool = False
    _in_flight: int = 0
    _started: int = 0
    _pages: set[Any] = field(default_factory=set)

    async def describe(self) -> dict[str, Any]:
        self.calls["describe"] += 1
        return {"form": "openai", "url": "http://fake/v1", "model": "m", "server": "fake", "context_length": None}

    async def ask(self, request: ServedRequest) -> ServedReply:
        self.asked.append(request)
        self.times.append(asyncio.get_running_loop().time())
        number = len(self.asked)
        ahead, started = self._in_flight, self._started
        self._in_flight += 1
        self._started += 1
        self.most_in_flight = max(self.most_in_flight, self._in_flight)
        try:
            await asyncio.sleep(self.seconds)
            error = self.error(number)
            if error is not None:
                raise error
            return self._reply(request, number, ahead + self._started - started - 1)
        finally:
            self._in_flight -= 1

    async def tokenize(self, text: str) -> tuple[int, ...] | None:
        self.calls["tokenize"] += 1
        return tuple(model.encode(text)) if self.tokenizes else None

    async def score(self, prompt: str, continuation: str) -> tuple[ServedToken, ...] | None:
        self.calls["score"] += 1
        if not self.scores:
            return None
        ids, tokens = list(prompt.encode()), []
        state = _start(ids)
        for token in model.encode(continuation):
            row = model.logprobs(state, ids[-1], [], ends_after=None, hostile=False)
            tokens.append(self._token(token, row))
            state, ids = model.advance(state, token), [*ids, token]
        return tuple(tokens)

    async def close(self) -> None:
        self.closed = True

    def _reply(self, request: ServedRequest, number: int, beside: int) -> ServedReply:
        prompt = self._prompt(request)
        cached = self._found(prompt, (request.cache_salt or "") if self.salts else "")
        drifts = [(f"company/{beside}", self.with_company)] if beside and self.with_company else []
        if cached and self.after_hit:
            drifts.append((f"hit/{cached}", self.after_hit))
        if self.by_itself and Random(f"noise/{number}").random() < self.noise_rate:
            drifts.append((f"noise/{number}", self.by_itself))
        seed = f"seed/{request.seed}" if request.seed is not None and self.seeds else f"free/{number}"
        state, ids, tokens = _start(prompt), list(prompt), []
        for place in range(request.max_tokens):
            row = model.logprobs(state, ids[-1], drifts, ends_after=None, hostile=False)
            token = model.draw(row, request.temperature, f"{seed}/{place}")
            tokens.append(self._token(token, row))
            state, ids = model.advance(state, token), [*ids, token]
        made = ids[len(prompt) :]
        return ServedReply(
            text=model.decode(made),
            token_ids=tuple(made) if self.ids and request.token_ids_back else None,
            token_ids_by="return_token_ids" if self.ids and request.token_ids_back else None,
            tokens=tuple(tokens) if self.logprobs and request.logprobs is not None else None,
            finish_reason="length",
            prompt_tokens=len(prompt) if self.usage else None,
            completion_tokens=len(made) if self.usage else None,
            cached_tokens=cached if self.cached_told else None,
            fingerprint="fp-fake",
            chunks=len(made) + 1 if request.stream else None,
            seconds=self.seconds,
        )

    def _prompt(self, request: ServedRequest) -> list[int]:
        if request.token_ids is not None:
            return list(request.token_ids)
        if request.messages is None:
            return list((request.prompt or "").encode())
        return list("".join(f"<{one['role']}>{one['content']}" for one in request.messages).encode())

    def _found(self, prompt: list[int], salt: str) -> int:
        if not self.cache:
            return 0
        found, whole = 0, True
        for end in range(PAGE, len(prompt), PAGE):
            page = (salt, tuple(prompt[:end]))
            whole = whole and page in self._pages
            found += PAGE * whole
            self._pages.add(page)
        return found

    def _token(self, token: int, row: list[tuple[int, float]]) -> ServedToken:
        known = dict(row)
        return ServedToken(
            text=model.decode([token]),
            raw=model.VOCABULARY[token],
            token_id=token,
            logprob=known.get(token, row[-1][1]),
            top=tuple((model.decode([one]), logprob) for one, logprob in row[:5]),
        )


def _start(ids: list[int]) -> bytes:
    """The state after a prompt: one digest, for prompts are long and only replies are told token by token."""
    return hashlib.blake2b(repr(ids).encode(), digest_size=16).digest()


SILENT = Display(
    progress=lambda total: nullcontext(lambda note: None),
    capabilities=lambda rows: None,
    on_interrupt=lambda: None,
)


@pytest.fixture
def fake_server() -> type[FakeServer]:
    return FakeServer


@pytest.fixture
def probe(tmp_path) -> Callable[..., Outcome]:
    """``probe(server, **settings)``: a whole run in virtual time; small unless the settings say otherwise."""
    (tmp_path / "prompts.jsonl").write_text(
        '{"id": "one", "prompt": "Tell of the sea."}\n'
        '{"id": "two", "prompt": "' + "Say what the harbour holds and who paid for it. " * 8 + '"}\n'
    )
    number = 0

    def run_it(server: FakeServer, *, tokenizer=None, display=SILENT, **settings: Any) -> Outcome:
        nonlocal number
        number += 1
        defaults = {"model": "m", "api": server.api, "nonce": "c0ffee", "max_tokens": 24, "trials": 2}
        chosen = {**defaults, "prompts": tmp_path / "prompts.jsonl", "out": tmp_path / f"run-{number}", **settings}
        plan = prepare(ServerSettings(**chosen))
        return run(plan, lambda: server, display, tokenizer=tokenizer, loop_factory=VirtualTimeLoop)

    return run_it
