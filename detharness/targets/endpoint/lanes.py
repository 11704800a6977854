"""Connections to one server: as many as the caller uses, or a stated number and never one more.

One pool of httpcore looks at all of its connections whenever a request starts or ends, so a thousand at once cost more
than a core. They are spread over many small pools instead.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext

import httpx

_LANES = 64

# A server may close a connection that idles, and what is sent at that moment is lost. Most wait for 2 seconds or more.
_IDLE_SECONDS = 1.0

# While a server thinks, nothing flows; only the kernel can tell that its host is gone: after 60 + 4 x 15 seconds.
_KEEP_ALIVE = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4),
]


class Lanes:
    """``connections``: the most that are ever open; None: no limit. secure: whether TLS is spoken."""

    def __init__(self, connections: int | None, *, secure: bool) -> None:
        count = _LANES if connections is None else min(_LANES, connections)
        each, more = (0, 0) if connections is None else divmod(connections, count)
        self._shares = [None if connections is None else each + (lane < more) for lane in range(count)]
        self._turns = nullcontext() if connections is None else asyncio.Semaphore(connections)
        self._under_way = [0] * count
        # One context for all: each would read the certificates again. Without TLS it is never used.
        verify = httpx.create_ssl_context(trust_env=False) if secure else False
        self._pools = [
            httpx.AsyncHTTPTransport(
                verify=verify,
                trust_env=False,  # No proxy and no netrc of the environment.
                socket_options=_KEEP_ALIVE,
                limits=httpx.Limits(
                    max_connections=share, max_keepalive_connections=share, keepalive_expiry=_IDLE_SECONDS
                ),
            )
            for share in self._shares
        ]

    @asynccontextmanager
    async def one(self) -> AsyncIterator[httpx.AsyncHTTPTransport]:
        """What to send one request with, once a connection may be had for it; the first come are served first."""
        async with self._turns:
            free = (lane for lane, share in enumerate(self._shares) if share is None or self._under_way[lane] < share)
            lane = min(free, key=self._under_way.__getitem__)
            self._under_way[lane] += 1
            try:
                yield self._pools[lane]
            finally:
                self._under_way[lane] -= 1

    async def close(self) -> None:
        """Close every connection."""
        for pool in self._pools:
            await pool.aclose()
