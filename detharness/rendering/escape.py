"""Text from outside, made safe and unambiguous for a terminal."""

from __future__ import annotations

import re
import unicodedata

_SHORT = {"\\": r"\\", "\n": r"\n", "\r": r"\r", "\t": r"\t"}

# Other (control, format, surrogate) and the two separators that break a line. Format characters hold the bidi
# controls, which reorder what stands around them, and the zero-width ones, which hide a difference.
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_NOT_PLAIN = re.compile(r"[^ -~\n\t]")
_JOINERS = frozenset("\u200c\u200d")  # Persian and emoji need them to be spelled at all.


def visible(text: str) -> str:
    r"""Return ``text`` on one line with everything unseen written as an escape: ``\n``, ``\x1b``, ``\u202e``.

    Controls (C0, DEL, C1, so every terminal sequence), bidi and other format characters, line separators
    and lone surrogates are escaped; a backslash is doubled, so that two different texts never look the
    same.
    """
    return "".join(_character(character) for character in text)


def one_line(text: str) -> str:
    """``visible`` for a sentence of ours that quotes names from outside: a backslash, often of a repr, stays single."""
    return "".join("\\" if character == "\\" else _character(character) for character in text)


def reading_lines(text: str) -> str:
    """``text`` for reading over several lines: newlines, tabs and backslashes stay, the rest unseen is escaped."""
    return _NOT_PLAIN.sub(lambda found: _character(found[0]), text)


def _character(character: str) -> str:
    if character in _SHORT:
        return _SHORT[character]
    if character in _JOINERS or unicodedata.category(character) not in _UNSEEN:
        return character
    code = ord(character)
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
