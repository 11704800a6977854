"""A stream of events means the same however it is cut, and no byte of it is looked at twice."""

import time

import pytest

from detharness.targets.endpoint.events import Event, EventReader

STREAM = (
    b"\xef\xbb\xbf: a comment\r\n\r\ndata: one\n\ndata:two\ndata: lines\n\nid: 7\nretry: 5\n\n"
    b"event: error\ndata: it broke\n\ndata: three \r\n\r\n: keep-alive\n\nerror: by itself\n\ndata\n\ndata: [DONE]"
)
EVENTS = [
    Event(b"one"),
    Event(b"two\nlines"),
    Event(b"it broke", "error"),
    Event(b"three "),
    Event(b"by itself", "error"),
    Event(b""),
    Event(b"[DONE]"),
]


def read(*pieces):
    reader = EventReader()
    return [event for piece in pieces for event in reader.feed(piece)] + list(reader.end())


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, len(STREAM)])
def test_a_stream_is_read_the_same_however_it_is_cut(size):
    assert read(*(STREAM[at : at + size] for at in range(0, len(STREAM), size))) == EVENTS


def test_an_event_is_there_as_soon_as_its_empty_line_is():
    reader = EventReader()
    assert list(reader.feed(b"data: x\n")) == []
    assert list(reader.feed(b"\ndata: y")) == [Event(b"x")]
    assert list(reader.end()) == [Event(b"y")]


def test_what_is_no_stream_of_events_holds_none():
    assert read(b"<html>\n<body>Please: log in</body>\n\n</html>") == []
    assert read(b"") == []


def test_a_huge_line_in_many_pieces_is_read_in_the_time_its_length_takes():
    piece, count = b"x" * 100, 100_000  # Looked at anew with each piece, it would take a thousand times as long.
    start = time.process_time()
    assert read(b"data: ", *([piece] * count), b"\n\n") == [Event(piece * count)]
    assert time.process_time() - start < 5.0
