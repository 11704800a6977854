"""Text of a reply while it grows."""

from __future__ import annotations

from detharness.checkpoints.tokenizer import REPLACEMENT, Tokenizer

_LONG = 64  # Ids in the window from which on it is cut even between two ill-formed sequences.
_TAIL = 8  # Ids that such a cut leaves: more than the bytes of a character.


class IncrementalDetokenizer:
    """Gives the text of a reply piece by piece; the pieces joined are ``tokenizer.decode`` of all its ids.

    Decoding id by id loses spaces and breaks characters. So the ids since the last certain point are decoded as a
    whole, and what goes beyond the text already given is new; the work for one id does not grow with the reply. A
    U+FFFD at the end may be the start of a character: it is held back until another id decides, or until ``flush``.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._window: list[int] = []
        self._continues = False  # Whether text stands before the window.
        self._given = 0  # Characters of the window's text that have been returned.

    def push(self, token_id: int) -> str:
        """Add one id and return the text that is now certain, possibly none."""
        if self._tokenizer.is_special(token_id):
            return ""  # Decoding leaves these out before anything else, so they part no character.
        self._window.append(token_id)
        text = self._text(self._window)
        undecided = text.endswith(REPLACEMENT)
        certain = len(text) - undecided
        new = text[self._given : certain]
        self._given = certain
        if undecided:
            if len(self._window) >= _LONG:
                self._cut_between_ill_formed_sequences(text)
        elif text:  # Where there is no text yet, the next id still is the first and may lose its leading space.
            self._window, self._given, self._continues = [], 0, True
        return new

    def flush(self) -> str:
        """End the reply and return the rest of its text; half a character comes out as U+FFFD."""
        text = self._text(self._window)
        new = text[self._given :]
        self._given = len(text)
        return new

    def _text(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(token_ids, continues=self._continues)

    def _cut_between_ill_formed_sequences(self, text: str) -> None:
        """Cut where the two halves' texts make up the whole: then no character and no ill-formed sequence is parted."""
        for start in range(len(self._window) - _TAIL, 0, -1):
            head = self._text(self._window[:start])
            if head and head + self._tokenizer.decode(self._window[start:], continues=True) == text:
                self._window, self._given, self._continues = self._window[start:], self._given - len(head), True
                return
