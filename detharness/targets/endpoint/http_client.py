"""HTTP to one server, with an end: every request is a whole body in bounded time and memory, or a GenerationError.

The key goes to the host of the base URL and nowhere else: redirects are not followed, and proxies and netrc of the
environment are not used.
"""

from __future__ import annotations

import asyncio
import math
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any

import httpx
import orjson

from detharness.rendering.escape import one_line
from detharness.targets.generation import GenerationError

_QUOTED = 300  # Characters of what a server says that are shown.
_REFUSED = frozenset({400, 413, 415, 422})  # This request is wrong, or asks for what the server cannot do.
_PASSING = frozenset({408, 425, 429})  # With everything from 500, what another try may mend.

# While a server thinks, nothing flows; only the kernel can tell that its host is gone: after 60 + 4 x 15 seconds.
_KEEP_ALIVE = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4),
]


@dataclass(frozen=True)
class Limits:
    """Seconds to connect, between two pieces of a body, and for a request as a whole; bytes of a body."""

    connect: float = 10.0
    stall: float = 60.0
    total: float = 1800.0
    body: int = 64 * 2**20


class HttpClient:
    """Requests below ``base`` (of ``base_url``), as many at once as the caller makes, from one event loop."""

    def __init__(self, base: str, *, limits: Limits, key: str | None) -> None:
        self._base = base
        self._limits = limits
        self._key = key
        # No compression: a small body must not unpack to a huge one.
        headers = {"accept": "application/json", "accept-encoding": "identity"}
        if key is not None:
            headers["authorization"] = f"Bearer {key}"
        self._client = httpx.AsyncClient(
            headers=headers,
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),  # No request depends on those before it.
            trust_env=False,
            follow_redirects=False,
            # ``read`` spans the time a server thinks; what bounds it is the deadline of the whole.
            timeout=httpx.Timeout(limits.total, connect=limits.connect, write=limits.stall),
            transport=httpx.AsyncHTTPTransport(
                trust_env=False,
                socket_options=_KEEP_ALIVE,
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
            ),
        )

    async def close(self) -> None:
        """Close every connection."""
        await self._client.aclose()

    async def get(self, path: str) -> bytes:
        """The body at ``path``; GenerationError where there is none."""
        return await self._whole(self._client.build_request("GET", self._base + path))

    async def post(self, path: str, body: Mapping[str, Any]) -> bytes:
        """The body that answers ``body``, sent as JSON; GenerationError where there is none."""
        try:
            content = orjson.dumps(body)
        except TypeError:  # orjson's refusal of lone surrogates and of what JSON does not have.
            raise GenerationError("refused", "the request cannot be written as JSON", retriable=False) from None
        headers = {"content-type": "application/json"}
        return await self._whole(
            self._client.build_request("POST", self._base + path, content=content, headers=headers)
        )

    def quote(self, text: str) -> str:
        """What came from outside, fit to be shown: no key that a server echoes, no controls, and short."""
        if self._key is not None:
            text = text.replace(self._key, "***")
        return one_line(text[:_QUOTED]) + ("..." if len(text) > _QUOTED else "")

    async def _whole(self, request: httpx.Request) -> bytes:
        try:
            async with asyncio.timeout(self._limits.total):
                response = await self._client.send(request, stream=True)
                try:
                    body = await self._body(response)
                finally:
                    await response.aclose()
        except TimeoutError:
            raise GenerationError(
                "timeout", f"no whole reply came within {self._limits.total:g} seconds", retriable=True
            ) from None
        except httpx.HTTPError as error:
            raise self._lost(error) from None
        if not response.is_success:
            raise self._unwanted(response, body)
        return body

    async def _body(self, response: httpx.Response) -> bytes:
        """The body as it came over the wire, never more than the limit and one piece."""
        body = bytearray()
        pieces = response.aiter_raw()
        while True:
            try:
                async with asyncio.timeout(self._limits.stall):
                    body += await anext(pieces)
            except StopAsyncIteration:
                return bytes(body)
            except TimeoutError:
                raise GenerationError(
                    "timeout", f"the reply stopped in its middle for {self._limits.stall:g} seconds", retriable=True
                ) from None
            if len(body) > self._limits.body:
                raise GenerationError(
                    "too_large", f"the reply is larger than {self._limits.body} bytes", retriable=False
                )

    def _lost(self, error: httpx.HTTPError) -> GenerationError:
        said = self.quote(str(error) or type(error).__name__)
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
            said = f"a redirect to {self.quote(response.headers['location'])}, which is not followed: give that URL"
        else:
            said = self.quote(server_message(body)) or "without a message"
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
