"""Data files as people have them: the loader cases L06, L09, L12 and L15, and bytes that two readers read apart."""

import csv
import json
import sys

import pytest

from detharness.errors import UsageError
from detharness.eval.data import read_rows


@pytest.fixture
def file(tmp_path):
    def write(content):
        path = tmp_path / "data.txt"  # Its name says nothing: the content does.
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def refusal(path):
    with pytest.raises(UsageError) as caught:
        read_rows(path)
    return str(caught.value)


ROWS = [{"id": 1, "problem": "a\nb"}, {"id": 2, "problem": "c"}]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS)


@pytest.mark.parametrize(
    "content",
    [
        LINES,
        LINES.removesuffix("\n"),
        LINES + "\n \n",
        LINES.replace("\n", "\r\n"),
        "\ufeff" + LINES,
        "\n\n" + LINES,
        json.dumps(ROWS),
        "\ufeff" + json.dumps(ROWS, indent=2).replace("\n", "\r\n") + "\r\n",
    ],
    ids=["lines", "no-last-newline", "L06-blank-last", "L06-crlf", "L06-bom", "blank-first", "L06-array", "array-crlf"],
)
def test_json_reads_alike_in_every_dress(file, content):
    assert [row.value for row in read_rows(file(content))] == ROWS


def test_a_row_knows_the_line_it_stands_on(file):
    path = file('{"a": 1}\n\n{"a": 2}\n')
    assert [(row.line, row.where) for row in read_rows(path)] == [(1, f"{path}, line 1"), (3, f"{path}, line 3")]
    path = file('[{"a": 1},\n\n{"a": 2}]')
    assert [(row.line, row.where) for row in read_rows(path)] == [(1, f"{path}, item 1"), (2, f"{path}, item 2")]


@pytest.mark.parametrize("character", ["\u2028", "\u2029", "\u0085", "\x7f", "\ufeff", "\U0001f600"])
def test_only_a_newline_ends_a_line(file, character):
    text = f"before{character}after"
    path = file(json.dumps({"problem": text}, ensure_ascii=False) + "\n" + LINES)
    assert [row.value["problem"] for row in read_rows(path)] == [text, "a\nb", "c"]


def test_escapes_as_the_library_writes_them_are_read(file):
    path = file(r'{"url":"https:\/\/example.org","text":"a\u2028b\ud83d\ude00"}')
    assert read_rows(path)[0].value == {"url": "https://example.org", "text": "a\u2028b\U0001f600"}


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ('{"answer": NaN}', "not valid JSON"),  # L12
        ('{"answer": -Infinity}', "not valid JSON"),
        ('{"answer": 1e999}', "infinity"),
        ('{"answer": 18446744073709551616}', "does not fit 64 bits"),
        ('{"answer": ' + "9" * 5000 + "}", "not valid JSON"),
        (r'{"answer": "\ud800"}', "surrogate"),
        (b'{"answer": "\xed\xa0\x80"}', "UTF-8"),
        (b'{"answer": "\xff"}', "UTF-8"),
        ('{"answer": 1, "answer": 1}', "'answer' stands twice"),
        ('{"list": [{"a": 1, "a": 2}]}', "'a' stands twice"),
        ('{"answer": "a\tb"}', "control character"),
        ('{"answer": 1} {"answer": 2}', "not valid JSON"),
        ('{"answer": 1', "not valid JSON"),
        ("[1]", "not valid JSON"),  # Of a file that begins with an array and goes on.
        ("3", "must be a JSON object"),
        ('"text"', "must be a JSON object"),
        ("null", "must be a JSON object"),
        ('{"a": ' + "[" * 300 + "]" * 300 + "}", "nested too deeply"),
        ('{"a": ' + "[" * 980 + "]" * 980 + "}", "nested too deeply"),
        ('{"a": ' + "[" * 50_000 + "]" * 50_000 + "}", "depth limit"),
    ],
)
def test_what_two_readers_could_read_apart_is_refused_by_its_line(file, row, reason):
    row = row if isinstance(row, bytes) else row.encode()
    starts_an_array = row == b"[1]"
    path = file((b"" if starts_an_array else b'{"answer": 1}\n\n') + row + b'\n{"answer": 2}\n')
    said = refusal(path)
    assert reason in said
    assert said.startswith(f"{path}: " if starts_an_array else f"{path}, line 3: ")
    assert "\n" not in said


def test_an_item_of_an_array_is_refused_by_its_number(file):
    path = file('[{"a": 1}, {"a": 2}, 3]')
    assert refusal(path) == f"{path}, item 3: each row must be a JSON object"


def test_integers_of_64_bits_and_floats_are_read_exactly(file):
    path = file('{"a": 18446744073709551615, "b": -9223372036854775808, "c": 33.5, "d": true}')
    assert (
        repr(read_rows(path)[0].value) == "{'a': 18446744073709551615, 'b': -9223372036854775808, 'c': 33.5, 'd': True}"
    )


def test_a_refusal_quotes_no_more_than_a_line_of_a_large_value(file):
    path = file('{"a": ' + "9" * 300 + "}")
    assert len(refusal(path)) < len(str(path)) + 300


@pytest.mark.parametrize("content", ["", "\n", "\ufeff \r\n\n", "[]", "a,b\n"])
def test_a_file_without_rows_is_refused(file, content):
    path = file(content)
    assert refusal(path) == f"{path} holds no row: give a file with one task a row"


@pytest.mark.parametrize(
    ("content", "name"),
    [(b"\x1f\x8b\x08", "gzip"), (b"\x28\xb5\x2f\xfd", "zstd"), (b"BZh9", "bzip2"), (b"PK\x03\x04", "zip")],
)
def test_l15_a_compressed_file_is_refused_with_what_to_do(file, content, name):
    path = file(content)
    assert refusal(path) == f"{path} is compressed ({name}): unpack it first"


def test_a_missing_file_is_refused(tmp_path):
    assert refusal(tmp_path / "none") == f"cannot read {tmp_path / 'none'}: No such file or directory"


def test_l09_a_csv_field_keeps_its_newlines_quotes_and_blanks(file):
    fields = ["a\nb\r\nc", ' say "hi", ', "[x]; y\u2028z", "", "x" * 200_000]
    path = file("")
    with path.open("w", newline="") as stream:
        csv.writer(stream).writerows([list("pqrst"), fields, fields[::-1]])
    first, second = read_rows(path)
    assert list(first.value.values()) == fields
    assert list(second.value) == list("pqrst")
    assert list(second.value.values()) == fields[::-1]
    assert (first.line, second.line) == (2, 5)  # Where each begins: the first covers three lines.


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_a_csv_may_separate_by_semicolon_or_tab(file, separator):
    path = file(separator.join("ab") + "\r\n" + separator.join(["1,5", "2"] if separator != "," else ['"1,5"', "2"]))
    assert [row.value for row in read_rows(path)] == [{"a": "1,5", "b": "2"}]


def test_a_csv_may_start_with_a_mark_and_hold_blank_lines(file):
    rows = read_rows(file("\ufeffa,b\n\n1,2\n\n"))
    assert [(row.line, row.value) for row in rows] == [(3, {"a": "1", "b": "2"})]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("a,b\n1,2\n\n3\n", ", line 4: 1 fields under 2 column names"),
        ('a,b\n"1\n1",2\n1,2,3\n', ", line 4: 3 fields under 2 column names"),
        ('a,b\n1,2\n1,"2\n3', ", line 3: unexpected end of data"),
        ('a,b\n"1"x,2\n', ", line 2: ',' expected after '\"'"),
        ("a,a\n1,2\n", " is no JSON, and its first line is no CSV header with names of their own"),
        ("hello\nworld\n", " is no JSON, and its first line is no CSV header with names of their own"),
        (b"a,b\n1,\xff\n", " is no JSON and no UTF-8 text (byte 6): give JSONL, JSON, CSV or Parquet"),
    ],
)
def test_a_damaged_csv_is_refused_by_the_line_its_row_begins_on(file, content, said):
    path = file(content)
    assert refusal(path) == f"{path}{said}"


def test_reading_text_needs_no_table_library(file, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert len(read_rows(file(LINES))) == 2
