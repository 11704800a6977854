"""Looking for words from the end of a text: the last answer wins, and a reply may be long."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

_MOST = 1000  # A reply with more of them repeats itself.


def last_first(text: str, words: Sequence[str]) -> Iterator[int]:
    """Where one of ``words`` stands, from the end of ``text``; at most the last thousand places."""
    places = {word: text.rfind(word) for word in words}
    for _ in range(_MOST):
        last = max(places, key=places.__getitem__)
        if places[last] < 0:
            return
        yield places[last]
        places[last] = text.rfind(last, 0, places[last])
