"""Server-sent events from the bytes of a stream, by the rules of the HTML standard, section 9.2.6.

One thing is left out: a line ends at a line feed, never at a carriage return alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Event:
    """``data``: its lines, joined. name: of the field ``event``; "error" also for a field of that name."""

    data: bytes
    name: str = "message"


class EventReader:
    """Give it what comes, in any pieces; every byte is looked at once, however long a line grows."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._name = "message"
        self._data: list[bytes] = []
        self._begun = False

    def feed(self, piece: bytes) -> Iterator[Event]:
        """The events that ``piece`` completes."""
        *lines, rest = piece.split(b"\n")
        for line in lines:
            self._rest += line
            whole, self._rest = bytes(self._rest), bytearray()
            yield from self._line(whole.removesuffix(b"\r"))
        self._rest += rest

    def end(self) -> Iterator[Event]:
        """What stands after the last empty line. The standard drops it; a reader must see where a stream broke."""
        yield from self._line(bytes(self._rest))
        yield from self._line(b"")

    def _line(self, line: bytes) -> Iterator[Event]:
        if not self._begun:
            self._begun, line = True, line.removeprefix(b"\xef\xbb\xbf")
        if not line:
            if self._data:
                yield Event(b"\n".join(self._data), self._name)
            self._name, self._data = "message", []
            return
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value)
        elif field == b"event":
            self._name = value.decode("utf-8", "replace")
        elif field == b"error":  # Some servers tell of an error so.
            self._name, self._data = "error", [value]
