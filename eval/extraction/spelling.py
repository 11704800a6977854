"""One spelling for what people and models write in many: Unicode forms, LaTeX wrappers, invisible characters."""

from __future__ import annotations

import re
import unicodedata

_INVISIBLE = dict.fromkeys([*range(0x200B, 0x2010), 0x2060, 0xFEFF, 0x00AD])
_MINUS = dict.fromkeys([0x2212, 0x2010, 0x2011, 0xFE63, 0xFF0D], "-")
_RAISED = re.compile("[⁰¹²³⁴-⁹₀-₉¼-¾⅐-⅞]")
_WRAPPERS = re.compile(
    r"\\(?:text|textbf|textit|textrm|textsf|texttt|mathbf|mathrm|mathit|mathsf|mathtt|mathbb|bf|rm|operatorname"
    r"|boxed|fbox|underline|displaystyle|ensuremath|mbox|hbox)\s*\{([^{}]*)\}"
)
_SPACES = re.compile(
    r"\\(?:[,;:! ()\[\]]|quad|qquad|left(?![a-z])|right(?![a-z])|displaystyle|limits|thinspace)|~|\\?\$"
)
_DEPTH = 8  # Wrappers in wrappers; nobody needs more.


def plain(text: str) -> str:
    """NFKC without invisible characters, and with one minus. Raised and lowered digits are no digits: they become ^."""
    if text.isascii():
        return text
    spelled = _RAISED.sub("^", text).translate(_INVISIBLE).translate(_MINUS)
    return unicodedata.normalize("NFKC", spelled).translate(_MINUS)


def unwrapped(text: str) -> str:
    """``text`` without LaTeX's wrappers, spacing and dollar signs; backslashes that were doubled are single."""
    found = text.replace("\\\\", "\\").replace("{,}", ",")
    for _ in range(_DEPTH):
        found, count = _WRAPPERS.subn(r" \1 ", found)
        if not count:
            break
    return " ".join(_SPACES.sub(_space, found).split())


def _space(match: re.Match[str]) -> str:
    # Thin spaces group digits: 1\,000 is one number.
    return "" if match[0] in ("\\,", "\\!", "\\:", "\\;") or match[0].endswith("$") else " "
