"""Somebody's running server as a target of probes: either API, streamed or whole, as many at once as one likes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from detharness.errors import UsageError
from detharness.targets.endpoint.address import base_url, key_from_environment
from detharness.targets.endpoint.completion import PATHS, Assembly, request_body
from detharness.targets.endpoint.events import Event
from detharness.targets.endpoint.headers import parse_headers
from detharness.targets.endpoint.http_client import HttpClient, Limits
from detharness.targets.endpoint.json_values import document
from detharness.targets.endpoint.model_card import CARD_LIMITS, read_card, read_version
from detharness.targets.endpoint.scoring import Scorer
from detharness.targets.endpoint.tokenizing import ServerTokenizer
from detharness.targets.serving import Api, ServedReply, ServedRequest, ServedToken


class ServedEndpoint:
    """The model ``model`` behind the base ``url``; nothing is sent before something is asked.

    headers: "Name: value", for every request; no value of theirs is ever shown. connections: the most that are
    ever open at once, None: no limit; what waits for one is not yet sent. The key comes from the environment alone, and
    an ``authorization`` among the headers takes its place. UsageError for what cannot be used.
    """

    def __init__(
        self,
        url: str,
        model: str,
        *,
        api: Api = "chat",
        headers: Sequence[str] = (),
        connections: int | None = None,
        limits: Limits | None = None,
    ) -> None:
        if connections is not None and connections < 1:
            raise UsageError(f"{connections} connections were asked for; at least 1 is needed")
        self._url = base_url(url)
        self._model = model
        self._api = api
        self._headers = parse_headers(headers)
        self._connections = connections
        self._key = key_from_environment()
        self._client = HttpClient(
            self._url, limits=limits or Limits(), key=self._key, headers=self._headers, connections=connections
        )
        self._tokenizer = ServerTokenizer(self._client, model)
        self._scorer = Scorer(self._client, model)

    @property
    def api(self) -> Api:
        """Which of the two APIs is asked."""
        return self._api

    async def describe(self) -> dict[str, Any]:
        """URL, model, and what the server says of both; names of headers, no value. UsageError where it is not there.

        listed: whether its list of models holds the model; None where it has no list.
        """
        client = HttpClient(self._url, limits=CARD_LIMITS, key=self._key, headers=self._headers)
        try:
            card = await read_card(client, self._url, self._model)
            version = await read_version(client, card.owner)
        finally:
            await client.close()
        return {
            "form": "server",
            "url": self._url,
            "model": self._model,
            "api": self._api,
            "server": card.owner,
            "version": version,
            "listed": card.listed,
            "context_length": card.context_length,
            "connections": self._connections,
            "headers": sorted(self._headers),
        }

    async def ask(self, request: ServedRequest) -> ServedReply:
        """One reply; GenerationError where there is none. ValueError for a request of the other API."""
        exchange = _Exchange(Assembly(self._api, self._client.secrets, stream=request.stream))
        body, path = request_body(self._api, self._model, request), PATHS[self._api]
        if request.stream:
            whole = await self._client.post_for_events(path, body, exchange.take, on_send=exchange.sent)
        else:
            whole = await self._client.post(path, body, on_send=exchange.sent)
        if whole is not None and request.stream:  # The server does not stream; a reply in one piece is one, too.
            exchange.assembly = Assembly(self._api, self._client.secrets, stream=False)
        if whole is not None:
            exchange.assembly.add(document(whole))
        return exchange.reply()

    async def tokenize(self, text: str) -> tuple[int, ...] | None:
        """Token ids of raw text by the server's own ``/tokenize``; None where it has none."""
        return await self._tokenizer.tokenize(text)

    async def score(self, prompt: str, continuation: str) -> tuple[ServedToken, ...] | None:
        """The continuation's tokens as the server scores them after ``prompt``; None where it cannot score text.

        GenerationError also where its tokens do not break at the place where the continuation begins.
        """
        return await self._scorer.score(prompt, continuation)

    async def close(self) -> None:
        """Close every connection."""
        await self._client.close()


class _Exchange:
    """One request under way, and its times by the loop's clock."""

    def __init__(self, assembly: Assembly) -> None:
        self.assembly = assembly
        self._clock = asyncio.get_running_loop().time
        self._asked = self._sent = self._clock()
        self._first: float | None = None
        self._last: float | None = None

    def sent(self) -> None:
        self._sent = self._clock()

    def take(self, event: Event) -> bool:
        """One event of a stream; whether it was the last."""
        data = event.data.strip()
        if data == b"[DONE]":
            self._last = self._clock()
            self.assembly.end()
            return True
        if event.name == "error":
            self.assembly.broken(data)
        if data and self.assembly.add(document(data)) and self._first is None:
            self._first = self._clock()
        return False

    def reply(self) -> ServedReply:
        end = self._clock() if self._last is None else self._last
        return replace(
            self.assembly.reply(),
            seconds=end - self._sent,
            first_seconds=None if self._first is None else self._first - self._sent,
            waited_seconds=self._sent - self._asked,
        )
