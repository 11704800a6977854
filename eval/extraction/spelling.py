"""One spelling for what people and models write in many: Unicode forms, LaTeX wrappers, invisible characters."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable

LONGEST = 2000
"""Characters of an answer that are read; none is longer. It also bounds NFKC, which is quadratic in combining marks."""

_UNSEEN = [*range(0x200B, 0x2010), *range(0x202A, 0x202F), *range(0x2060, 0x2065), 0xFEFF, 0x00AD]
_THIN = [0x2009, 0x200A, 0x202F]  # They group digits, so they go as well.
_MINUS = dict.fromkeys([0x2212, 0x2010, 0x2011, 0xFE63, 0xFF0D], "-")
# NFKC alone would make 103 of 10³.
_RAISED = {
    code: ("^" if kind == "<super>" else "_") + unicodedata.normalize("NFKC", chr(code))
    for code in range(0x80, 0x2E80)
    if (kind := unicodedata.decomposition(chr(code)).split(" ")[0]) in ("<super>", "<sub>")
}
_SPELLED = {**dict.fromkeys([*_UNSEEN, *_THIN]), **_MINUS, **_RAISED}
_WRAPPER = re.compile(
    r"\\(?:text|textbf|textit|textrm|textsf|texttt|textnormal|mathbf|mathrm|mathit|mathsf|mathtt|bf|rm|operatorname"
    r"|boxed|fbox|underline|ensuremath|mbox|hbox)\s*\{([^{}]*)\}"
)
_NOTHING = re.compile(r"\\?\$|\\[,!:]|\\(?:left|right|displaystyle|limits)(?![a-zA-Z])|\\[()\[\]]")
_SPACE = re.compile(r"\\[; ]|\\(?:q?quad|thinspace)(?![a-zA-Z])|~|\s+")
_DEPTH = 8  # Wrappers in wrappers; nobody needs more.


def plain(text: str) -> str:
    """The first LONGEST characters in NFKC, without invisible ones, with one minus; raised digits become ^2."""
    text = text[:LONGEST]
    return text if text.isascii() else unicodedata.normalize("NFKC", text.translate(_SPELLED)).translate(_MINUS)


def _content(match: re.Match[str]) -> str:
    return match[1]


def unwrapped(text: str, wrapped: Callable[[re.Match[str]], str] = _content) -> str:
    r"""``plain(text)`` without LaTeX's wrappers, spacing and dollar signs; backslashes that were doubled are single.

    wrapped: what stands for \text{...} and the like; its content is group 1.
    """
    found = plain(text).replace("\\\\", "\\").replace("{,}", ",")
    for _ in range(_DEPTH if "\\" in found else 0):
        found, count = _WRAPPER.subn(wrapped, found)
        if not count:
            break
    return _SPACE.sub(" ", _NOTHING.sub("", found)).strip()
