"""HTTP to one server, with an end: every request has its answer in bounded time and memory, or a GenerationError.

The key goes to the host of the base URL and nowhere else: redirects are not followed, and proxies and netrc of the
environment are not used.
"""

from __future__ import annotations

import asyncio
import math
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Literal, TypeVar

import httpx
import orjson

from detharness import __version__
from detharness.targets.endpoint.events import Event, EventReader
from detharness.targets.endpoint.headers import Secrets
from detharness.targets.endpoint.lanes import Lanes
from detharness.targets.generation import GenerationError

_AGENT = f"detharness/{__version__}"
_REFUSED = frozenset({400, 413, 415, 422})  # This request is wrong, or asks for what the server cannot do.
_PASSING = frozenset({408, 425, 429})  # With everything from 500, what another try may mend.
_DRAIN_SECONDS = 1.0

Below = Literal["base", "root"]
"""Below the base of the API, or below what the base itself stands below: /v1/tokenize, or /tokenize."""

T = TypeVar("T")


@dataclass(frozen=True)
class Limits:
    """Seconds to connect, between two pieces of a body, and for a request as a whole; bytes of a body."""

    connect: float = 10.0
    stall: float = 60.0
    total: float = 1800.0
    body: int = 64 * 2**20


class HttpClient:
    """Requests below ``base`` (of ``base_url``), as many at once as the caller makes, from one event loop.

    headers: more of them for every request; an ``authorization`` among them takes the place of the key's.
    connections: the most that are ever open at once; None: no limit.
    """

    def __init__(
        self,
        base: str,
        *,
        limits: Limits,
        key: str | None,
        headers: Mapping[str, str] | None = None,
        connections: int | None = None,
    ) -> None:
        self._base = base
        self._root = base.rpartition("/")[0]
        self._limits = limits
        self.secrets = Secrets(key, headers or {})
        # No compression: a small body must not unpack to a huge one.
        self._headers = {"accept": "application/json", "accept-encoding": "identity", "user-agent": _AGENT}
        if key is not None:
            self._headers["authorization"] = f"Bearer {key}"
        self._headers |= {name.lower(): value for name, value in (headers or {}).items()}
        self._lanes = Lanes(connections, secure=base.startswith("https:"))
        # ``read`` spans the time a server thinks; what bounds it is the deadline of the whole.
        timeout = httpx.Timeout(limits.total, connect=limits.connect, write=limits.stall)
        self._extensions = {"timeout": timeout.as_dict()}

    async def close(self) -> None:
        """Close every connection."""
        await self._lanes.close()

    async def get(self, path: str, *, below: Below = "base") -> bytes:
        """The body at ``path``; GenerationError where there is none."""
        return await self._exchange(self._request("GET", path, below), self._body)

    async def post(
        self, path: str, body: Mapping[str, Any], *, below: Below = "base", on_send: Callable[[], None] | None = None
    ) -> bytes:
        """The body that answers ``body``, sent as JSON; GenerationError where there is none.

        on_send: called when a connection may be had, which a limit on them may delay.
        """
        return await self._exchange(self._request("POST", path, below, body), self._body, on_send)

    async def post_for_events(
        self,
        path: str,
        body: Mapping[str, Any],
        take: Callable[[Event], bool],
        *,
        on_send: Callable[[], None] | None = None,
    ) -> bytes | None:
        """Each event of the stream that answers ``body`` is handed to ``take``, until it says that this was the last.

        None then; where no stream of events came, its whole body. GenerationError as for ``post``.
        """

        async def read(response: httpx.Response) -> bytes | None:
            if not response.headers.get("content-type", "").lower().startswith("text/event-stream"):
                return await self._body(response)
            await self._events(response, take)
            return None

        return await self._exchange(self._request("POST", path, "base", body), read, on_send)

    def _request(self, method: str, path: str, below: Below, body: Mapping[str, Any] | None = None) -> httpx.Request:
        url = (self._base if below == "base" else self._root) + path
        if body is None:
            return httpx.Request(method, url, headers=self._headers, extensions=self._extensions)
        try:
            content = orjson.dumps(body)
        except TypeError:  # orjson's refusal of lone surrogates and of what JSON does not have.
            raise GenerationError("refused", "the request cannot be written as JSON", retriable=False) from None
        headers = {**self._headers, "content-type": "application/json"}
        return httpx.Request(method, url, headers=headers, content=content, extensions=self._extensions)

    async def _exchange(
        self,
        request: httpx.Request,
        read: Callable[[httpx.Response], Awaitable[T]],
        on_send: Callable[[], None] | None = None,
    ) -> T:
        """What ``read`` makes of the response. Redirects are not followed, and cookies are not kept."""
        async with self._lanes.one() as lane:
            if on_send is not None:
                on_send()
            try:
                async with asyncio.timeout(self._limits.total):
                    response = await lane.handle_async_request(request)
                    try:
                        if not response.is_success:
                            raise self._unwanted(response, await self._body(response))
                        return await read(response)
                    finally:
                        await response.aclose()
            except TimeoutError:
                raise GenerationError(
                    "timeout", f"no whole reply came within {self._limits.total:g} seconds", retriable=True
                ) from None
            except httpx.HTTPError as error:
                raise self._lost(error) from None

    async def _body(self, response: httpx.Response) -> bytes:
        """The body as it came over the wire, never more than the limit and one piece."""
        body = bytearray()
        async for piece in self._pieces(response, self._limits.stall):
            body += piece
        return bytes(body)

    async def _events(self, response: httpx.Response, take: Callable[[Event], bool]) -> None:
        reader = EventReader()
        # Many servers answer before they have begun to think, so the first piece has as long as the whole.
        async with aclosing(self._pieces(response, self._limits.total)) as pieces:
            async for piece in pieces:
                if any(map(take, reader.feed(piece))):
                    break
            else:
                any(map(take, reader.end()))
            # Only a body that was read to its end frees its connection for the next request.
            with suppress(TimeoutError, GenerationError, httpx.HTTPError):
                async with asyncio.timeout(_DRAIN_SECONDS):
                    async for _ in pieces:
                        pass

    async def _pieces(self, response: httpx.Response, patience: float) -> AsyncGenerator[bytes, None]:
        """What comes over the wire, until there is too much. patience: seconds for the first piece."""
        pieces, received = response.aiter_raw(), 0
        while True:
            try:
                async with asyncio.timeout(patience):
                    piece = await anext(pieces)
            except StopAsyncIteration:
                return
            except TimeoutError:
                raise GenerationError(
                    "timeout", f"the reply stopped in its middle for {patience:g} seconds", retriable=True
                ) from None
            patience = self._limits.stall
            received += len(piece)
            if received > self._limits.body:
                raise GenerationError(
                    "too_large", f"the reply is larger than {self._limits.body} bytes", retriable=False
                )
            yield piece

    def _lost(self, error: httpx.HTTPError) -> GenerationError:
        said = self.secrets.quote(str(error) or type(error).__name__)
        if isinstance(error, httpx.TimeoutException):
            return GenerationError(
                "timeout", f"the server did not answer in time ({type(error).__name__})", retriable=True
            )
        if _caused_by(error, ssl.SSLError):
            return GenerationError("tls", f"no secure connection to the server: {said}", retriable=False)
        return GenerationError("connection", f"the connection failed: {said}", retriable=True)

    def _unwanted(self, response: httpx.Response, body: bytes) -> GenerationError:
        status = response.status_code
        kind = "refused" if status in _REFUSED else f"http_{status}"
        if response.has_redirect_location:
            elsewhere = self.secrets.quote(response.headers["location"])
            said = f"a redirect to {elsewhere}, which is not followed: give that URL"
        else:
            said = self.secrets.quote(server_message(body)) or "without a message"
        return GenerationError(
            kind,
            f"the server answered {status}: {said}",
            retriable=status in _PASSING or status >= 500,
            retry_after=_seconds(response.headers.get("retry-after")),
        )


def server_message(body: bytes) -> str:
    """The message in an error body, in any of the usual places, or the body itself."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return " ".join(body[:4096].decode("utf-8", errors="replace").split())
    for name in ("error", "message", "detail"):
        if isinstance(value, dict) and value.get(name):
            value = value[name]
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _caused_by(error: BaseException | None, kind: type[BaseException]) -> bool:
    while error is not None:
        if isinstance(error, kind):
            return True
        error = error.__cause__ or error.__context__
    return False


def _seconds(retry_after: str | None) -> float | None:
    """Seconds of a Retry-After header, given as a number or as a date; None for anything else."""
    if retry_after is None:
        return None
    try:
        seconds = float(retry_after)
    except ValueError:
        try:
            date = parsedate_to_datetime(retry_after)
        except ValueError:
            return None
        seconds = (date.replace(tzinfo=date.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
    return max(0.0, seconds) if math.isfinite(seconds) else None
