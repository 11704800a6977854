"""Headers that a person adds to every request, and the secrets that they may hold: no value is ever shown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from detharness.errors import UsageError
from detharness.rendering.escape import one_line

_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")  # A token of RFC 9110, section 5.6.2.
_VALUE = re.compile(r"[\t -~]*")

_OURS = frozenset(
    {
        *("accept", "accept-encoding", "connection", "content-encoding", "content-length", "content-type", "expect"),
        *("host", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"),
    }
)
"""How a request is framed, and what may come back: another value would break the one or unbound the other."""

_QUOTED = 300  # Characters of what a server says that are shown.

SHORTEST_SECRET = 8
"""Characters. What is shorter is not looked for in replies: "EMPTY" and the like are words too."""


def parse_headers(texts: Sequence[str]) -> dict[str, str]:
    """Headers given as "Name: value". UsageError, which shows no value, for what no request can hold."""
    headers: dict[str, str] = {}
    for number, text in enumerate(texts, 1):
        name, colon, value = text.partition(":")
        name, value = name.strip().lower(), value.strip()
        if not colon or not _NAME.fullmatch(name):
            raise UsageError(f"header {number} is not of the form 'Name: value'")
        if name in _OURS:
            raise UsageError(f"the header {name!r} cannot be given: each request sets its own")
        if name in headers:
            raise UsageError(f"the header {name!r} is given twice")
        if not value or not _VALUE.fullmatch(value):
            raise UsageError(f"the value of the header {name!r} is empty or holds a line break or other than ASCII")
        headers[name] = value
    return headers


class Secrets:
    """What must not be shown: the key, and each value of an added header, whole and in the parts it is made of."""

    def __init__(self, key: str | None, headers: Mapping[str, str]) -> None:
        found = {key} if key else set()
        for value in headers.values():
            found |= {value, *(part for part in re.split(r"[\s=;,]+", value) if len(part) >= SHORTEST_SECRET)}
        self._all = sorted(found, key=lambda secret: (-len(secret), secret))

    def conceal(self, text: str) -> str:
        """``text`` with three stars for every secret."""
        return _starred(text, self._all)

    def conceal_in_reply(self, text: str) -> str:
        """``text`` with three stars for every secret that is too long to be a word."""
        return _starred(text, (secret for secret in self._all if len(secret) >= SHORTEST_SECRET))

    def quote(self, text: str) -> str:
        """What came from outside, fit to be shown: no secret that a server echoes, no controls, and short."""
        text = self.conceal(text)
        return one_line(text[:_QUOTED]) + ("..." if len(text) > _QUOTED else "")


def _starred(text: str, secrets: Iterable[str]) -> str:
    for secret in secrets:
        text = text.replace(secret, "***")
    return text
