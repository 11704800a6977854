"""HTML pages that need nothing but themselves: no request leaves them, and no text in them can become markup.

Text goes in through ``tag`` (escaped) or ``data`` (a JSON block); style and script are named by their hashes in the
page's content security policy, so that nothing else on the page can run.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Sequence
from importlib import resources

from detharness.rendering.escape import reading_lines

_PLAIN = re.compile(r"[ !#-%'-;=?-\[\]-~]+")  # Characters that weigh one byte in a JSON block.


class Html(str):
    """Markup that ``tag`` made: it is not escaped again."""

    __slots__ = ()


def tag(name: str, *children: str, **attributes: str) -> Html:
    """Return ``<name attributes>children</name>``; a child that is not ``Html`` and every attribute value is escaped.

    ``class_`` and ``aria_label`` stand for ``class`` and ``aria-label``.
    """
    inside = "".join(child if isinstance(child, Html) else escaped(child) for child in children)
    shown = "".join(f' {key.strip("_").replace("_", "-")}="{escaped(value)}"' for key, value in attributes.items())
    return Html(f"<{name}{shown}>{inside}</{name}>")


def escaped(text: str) -> Html:
    """``text`` for an element's inside or a quoted attribute: no markup, and nothing unseen."""
    return Html(html.escape(reading_lines(text), quote=True))


def html_table(columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Html:
    """A table with a header row; cells are escaped unless they are ``Html``."""
    head = tag("tr", *(tag("th", column, scope="col") for column in columns))
    return tag(
        "table", tag("thead", head), tag("tbody", *(tag("tr", *(tag("td", cell) for cell in row)) for row in rows))
    )


def html_page(title: str, body: Html, *, script: str | None = None, data: object = None) -> str:
    """A whole page: ``body``, then ``data`` as a JSON block with the id "data", then ``script``, which may read it.

    Without a script no script can run on the page at all. Both colour schemes are in its style. ValueError for a script
    that would end its own element.
    """
    style = asset("page.css")
    allowed, end = "'none'", ""
    if script is not None:
        if "</script" in script.lower():
            raise ValueError("a script in a page must not hold its own closing tag")
        allowed = _hash(script)
        end = f'<script type="application/json" id="data">{json_in_html(data)}</script>\n<script>{script}</script>\n'
    policy = f"default-src 'none'; style-src {_hash(style)}; script-src {allowed}; base-uri 'none'; form-action 'none'"
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escaped(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n{body}\n{end}</body>\n</html>\n"
    )


def json_in_html(data: object) -> str:
    """Compact JSON that may stand inside a script element: no ``<``, ``>`` or ``&`` is left in it as such.

    ValueError for NaN and infinities.
    """
    text = json.dumps(data, sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def asset(name: str) -> str:
    """A style or script that ships in this folder."""
    return resources.files("detharness.rendering").joinpath(name).read_text("utf-8")


def excerpt(text: str, budget: int, *, head: float = 0.3) -> str:
    """The beginning and the end of ``text``, unseen characters escaped, within ``budget`` bytes of a JSON block.

    ``head``: the share of the budget for the beginning. Where something is left out, a mark says how many characters.
    """
    if len(text) <= budget and _weight(shown := reading_lines(text)) <= budget:
        return shown
    start = _take(text[:budget], int(budget * head))
    end = min(_take(text[-budget:][::-1], budget - int(budget * head)), len(text) - start)
    left_out = len(text) - start - end
    mark = f"\n[... {left_out} characters ...]\n" if left_out else ""
    return reading_lines(text[:start]) + mark + reading_lines(text[len(text) - end :])


def _take(text: str, budget: int) -> int:
    """How many of the first characters of ``text`` fit ``budget`` bytes."""
    count = 0
    while count < len(text):
        plain = _PLAIN.match(text, count, count + budget)
        if plain is not None:
            budget -= plain.end() - count
            count = plain.end()
            continue
        budget -= _weight(reading_lines(text[count]))
        if budget < 0:
            return count
        count += 1
    return len(text)


def _weight(text: str) -> int:
    """Bytes of ``text`` in a JSON block of a page."""
    return len(json_in_html(text).encode()) - 2


def _hash(text: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"
