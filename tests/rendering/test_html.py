"""Hostile text in a page: it stays text, whatever the parser that reads it."""

import json
import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detharness.rendering.grid_page import MAX_CELLS, GridCell, GridRow, Kind, Pane, grid_page, text_budget
from detharness.rendering.html import Html, escaped, excerpt, html_page, html_table, json_in_html, tag

HOSTILE = "</script><script>alert(1)</script><!--<script>]]>&lt;\u2028\u202e\x1b[2J\x00\ud800 'a\"b` $&"


class Elements(HTMLParser):
    """What a page holds: its elements in order, and the text inside each script and data block."""

    def __init__(self, page):
        super().__init__(convert_charrefs=True)
        self.names = []
        self.attributes = []
        self.text = ""
        self.inside = []
        self.feed(page)
        self.close()

    def handle_starttag(self, name, attributes):
        self.names.append(name)
        self.attributes += [(name, key, value) for key, value in attributes]
        if name == "script":
            self.inside.append("")

    def handle_data(self, data):
        if self.names and self.names[-1] == "script" and self.cdata_elem == "script":
            self.inside[-1] += data
        else:
            self.text += data


def test_text_and_attributes_are_escaped_and_markup_of_ours_is_not():
    made = tag("p", HOSTILE, tag("b", "x"), title='"><script>')
    found = Elements(made)
    assert found.names == ["p", "b"]
    assert found.attributes == [("p", "title", '"><script>')]
    assert "<script>alert(1)</script>" in found.text
    assert "\\x1b[2J" in found.text
    assert "\\u202e" in found.text
    assert "\\ud800" in found.text


def test_a_table_escapes_its_cells():
    assert Elements(html_table(("<i>",), [("<b>",), (tag("em", "x"),)])).names.count("em") == 1
    assert "<b>" not in html_table(("<i>",), [("<b>",)])


@given(st.text())
def test_no_text_ends_its_element_and_it_reads_back(text):
    # Unseen characters are shown as escapes; what is left must read back exactly.
    found = Elements(tag("p", text))
    assert found.names == ["p"]
    if text.isprintable():
        assert found.text == text


@given(
    st.recursive(
        st.text() | st.integers() | st.none(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_data_reads_back_and_cannot_end_its_script(data):
    block = json_in_html(data)
    assert not set(block) & set("<>&\u2028\u2029")
    assert json.loads(block) == data


def test_a_page_has_one_style_one_script_and_a_policy_that_names_them():
    page = html_page(HOSTILE, tag("p", HOSTILE), script="let a = 1;\n", data={"x": HOSTILE.replace("\ud800", "")})
    found = Elements(page)
    assert [name for name in found.names if name in ("script", "style", "link", "img", "iframe")] == [
        "style",
        "script",
        "script",
    ]
    data, script = found.inside
    assert json.loads(data)["x"] == HOSTILE.replace("\ud800", "")
    assert script == "let a = 1;\n"
    policy = next(value for _, key, value in found.attributes if key == "content" and "default-src" in value)
    assert policy.startswith("default-src 'none'; ")
    # SHA-256 of "let a = 1;\n", by `openssl dgst -sha256 -binary | base64`.
    assert "script-src 'sha256-3smTKsMnFX9i0OGCm4n/7GAEzudwCR3kiBveN8jVUAk='" in policy
    assert "unsafe" not in policy
    assert not re.search(r"(?:src|href)=", page)
    assert "prefers-color-scheme: dark" in page


def test_a_script_that_would_end_itself_is_refused():
    with pytest.raises(ValueError, match="closing tag"):
        html_page("x", Html(""), script="'</SCRIPT>'", data={})


@given(st.text(), st.integers(8, 200))
def test_an_excerpt_stays_within_its_budget(text, budget):
    short = excerpt(text, budget)
    mark = re.search(r"\n\[\.\.\. (\d+) characters \.\.\.\]\n", short)
    length = len(json_in_html(short).encode()) - 2
    if mark is None:
        assert length <= budget
        assert short == str(escaped_only_unseen(text))
    else:
        assert length - len(json_in_html(mark[0]).encode()) + 2 <= budget
        assert int(mark[1]) < len(text)


def escaped_only_unseen(text):
    return excerpt(text, 10**9)


def test_an_excerpt_keeps_both_ends():
    short = excerpt("a" * 5000 + "z" * 5000, 100)
    assert short == "a" * 30 + "\n[... 9900 characters ...]\n" + "z" * 70
    assert excerpt("<" * 1000, 60) == "<" * 3 + "\n[... 990 characters ...]\n" + "<" * 7


KINDS = (Kind("right", "o", "good", "right"), Kind("wrong", "x", "bad", "wrong"))


def grid(rows):
    return grid_page("a grid", [tag("p", "summary")], KINDS, rows)


def test_the_grid_carries_hostile_cells_as_data():
    cell = GridCell(3, "wrong", (HOSTILE,), (("answer", HOSTILE),), (Pane(HOSTILE, HOSTILE, HOSTILE, HOSTILE),))
    found = Elements(grid([GridRow(HOSTILE, (("question", HOSTILE),), (cell,))]))
    data = json.loads(found.inside[0])
    assert [kind["count"] for kind in data["kinds"]] == [0, 1]
    assert data["rows"][0]["cells"][0]["kind"] == 1
    assert data["rows"][0]["cells"][0]["tags"] == [0]
    assert "</script><script>alert(1)" in data["rows"][0]["cells"][0]["panes"][0]["before"]
    assert found.names.count("script") == 2


def test_a_cell_of_an_unknown_kind_is_an_error():
    with pytest.raises(ValueError, match="not in"):
        grid([GridRow("t", (), (GridCell(0, "odd"),))])


def test_more_cells_than_a_page_holds_are_left_out_and_said():
    cells = tuple(GridCell(sample, "right") for sample in range(MAX_CELLS))
    page = grid([GridRow("a", (), cells), GridRow("b", (), cells[:1]), GridRow("c", (), cells[:1])])
    assert "2 tasks are not drawn" in page


def test_the_texts_of_a_page_share_its_budget():
    assert text_budget(30, 960, 960) == 2_000
    assert 500 < text_budget(2_500, 2_500, 5_000) * 5_000 / 2_500 < 2_000
    assert text_budget(10_000, 10_000, 10_000) == 0


def test_rows_beyond_5_mb_are_left_out_and_said():
    rows = [
        GridRow(
            f"{number}", (), tuple(GridCell(sample, "right", (), (), (Pane("x", "<" * 1_000),)) for sample in (0, 1))
        )
        for number in range(600)
    ]
    page = grid(rows)
    assert 4_500_000 < len(page.encode()) < 5_000_000
    left_out = int(re.search(r"(\d+) tasks are not drawn", page)[1])
    assert 0 < left_out == 600 - len(json.loads(Elements(page).inside[0])["rows"])


def test_escaped_is_for_attributes_too():
    assert escaped('"') == "&quot;"


def test_a_page_without_a_script_lets_none_run():
    found = Elements(html_page(HOSTILE, tag("p", HOSTILE)))
    assert "script" not in found.names
    policy = next(value for _, key, value in found.attributes if key == "content" and "default-src" in value)
    assert "script-src 'none'" in policy
