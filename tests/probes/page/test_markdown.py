"""--markdown: one block to paste, whose structure no text from outside can change."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from detharness import __version__
from detharness.probes.page.markdown import code, markdown_summary, prose
from detharness.rendering.escape import visible


def parsed(text):
    """Tokens of the text as GitHub reads it: CommonMark with tables, inline HTML allowed."""
    return MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text)


def shape(text):
    return [token.type for token in parsed(text)]


def inlines(text):
    return [child for token in parsed(text) if token.children for child in token.children]


def test_it_names_verdict_versions_counts_and_what_was_not_looked_at(played):
    report = played()
    text = markdown_summary(report)
    assert text.startswith("### detharness probe of `engine:toy`: ✅ identical\n")
    assert f"`detharness {__version__}`" in text
    assert f"`torch {report['environment']['packages']['torch']}`" in text
    assert "❌ diverged 4 of 4" in text
    assert re.search(r"37\.5 % \(13\.7 % to 69\.4 %\), n = 8", text)
    assert "**Not looked at**" in text
    assert len(re.findall(r"^- ", text, re.MULTILINE)) == len(report["not_shown"])


def test_tables_are_tables(server_report):
    tokens = parsed(markdown_summary(server_report))
    assert [token.type for token in tokens].count("table_open") == 3  # Axes, prompts, capabilities.


def test_hostile_text_changes_neither_structure_nor_links(poisoned, server_report):
    calm, loud = markdown_summary(server_report), markdown_summary(poisoned)
    assert shape(loud) == shape(calm)
    kinds = {token.type for token in inlines(loud)}
    assert not kinds & {"link_open", "image", "html_block"}
    assert {token.content for token in inlines(loud) if token.type == "html_inline"} <= {"<!-- -->"}
    assert "\x1b" not in loud
    assert "\u202e" not in loud


@given(st.text(alphabet=st.one_of(st.sampled_from("`|\\ \n<*_[]!@#~"), st.characters()), max_size=40))
def test_any_text_is_one_code_span_that_reads_back(text):
    (token,) = inlines(f"a {code(text)} b")[1:-1]
    assert token.type == "code_inline"
    # A pipe is escaped for tables; outside of one its backslash shows.
    assert token.content.strip(" ") == (visible(text).replace("|", "\\|") or " ").strip(" ")


@given(st.text(alphabet=st.one_of(st.sampled_from("`|\\ \n"), st.characters()), max_size=40))
def test_any_text_is_one_cell_that_reads_back(text):
    tokens = parsed(f"| a | b |\n| --- | --- |\n| {code(text)} | x |\n")
    cells = [tokens[place + 1] for place, token in enumerate(tokens) if token.type == "td_open"]
    assert len(cells) == 2
    assert [child.type for child in cells[0].children] == ["code_inline"]
    assert cells[0].children[0].content.strip(" ") == visible(text).strip(" ")


@pytest.mark.parametrize(
    "text",
    [
        "<b>x</b>",
        "[a](http://x)",
        "![a](x)",
        "*a* __b__ ~~c~~",
        "`a`",
        "- a",
        "# a",
        "> a",
        "&lt;",
        "a\n\nb",
        "<http://x>",
    ],
)
def test_prose_formats_nothing(text):
    (first, inline, last) = parsed(prose(text))
    assert (first.type, last.type) == ("paragraph_open", "paragraph_close")
    assert {child.type for child in inline.children} <= {"text", "html_inline"}


def test_prose_mentions_nobody():
    assert prose("ask @maintainers of #12") == "ask @<!-- -->maintainers of #<!-- -->12"


def test_a_long_reply_is_cut(server_report):
    server_report["arms"][0]["divergences"][0]["context"]["reference"] = "x" * 100_000
    assert len(markdown_summary(server_report)) < 10_000
