"""One value, one sequence of bytes; floats come back bit for bit; nothing ambiguous is read or written."""

import math
import struct
from enum import StrEnum

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detharness.errors import UsageError
from detharness.records.canonical import canonical_bytes, parse_json, read_json

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("ab\u2028é\\", max_size=3), inner, max_size=4),
    max_leaves=12,
)


@given(PLAIN)
def test_a_value_reads_back_equal_and_writes_the_same_bytes_again(value):
    data = canonical_bytes(value)
    assert parse_json(data) == value
    assert canonical_bytes(parse_json(data)) == data


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_float_reads_back_bit_for_bit(value):
    assert struct.pack("<d", parse_json(canonical_bytes(value))) == struct.pack("<d", value)


def test_the_order_of_insertion_leaves_no_trace():
    assert canonical_bytes({"b": 1, "a": {"d": (1, 2), "c": None}}) == b'{"a":{"c":null,"d":[1,2]},"b":1}'


class Colour(StrEnum):
    RED = "red"


@pytest.mark.parametrize(
    ("value", "error", "place"),
    [
        ({"a": [1.0, math.nan]}, ValueError, r"\$\.a\[1\]"),
        ({"a": math.inf}, ValueError, r"\$\.a"),
        ([-math.inf], ValueError, r"\$\[0\]"),
        ({"a": "\ud800"}, ValueError, r"\$\.a"),
        ({"\udfff": 1}, ValueError, "surrogate"),
        ({"a": 2**64}, ValueError, r"\$\.a"),
        ({"a": [1, 2**64]}, ValueError, r"\$\.a\[1\]"),
        ({"a": [-(2**63) - 1, 1]}, ValueError, r"\$\.a\[0\]"),
        ({1: "a"}, TypeError, r"\$"),
        ({"a": np.float64(1.0)}, TypeError, r"numpy\.float64"),
        ({"a": {1, 2}}, TypeError, "set"),
        ({"a": b"x"}, TypeError, "bytes"),
        ({"a": Colour.RED}, TypeError, "Colour"),
    ],
)
def test_what_has_no_canonical_form_is_refused_with_its_place(value, error, place):
    with pytest.raises(error, match=place):
        canonical_bytes(value)


@pytest.mark.parametrize("depth", [255, 990, 100_000])
def test_what_is_nested_too_deeply_has_no_canonical_form(depth):
    value = []
    for _ in range(depth):
        value = [value]
    with pytest.raises(ValueError, match="nested too deeply"):
        canonical_bytes(value)


@pytest.mark.parametrize(
    ("data", "phrase"),
    [
        (b'{"a":1,"a":2}', "'a' stands twice"),
        (b'[{"b":{"a":1,"a":1}}]', "'a' stands twice"),
        (b'{"a":NaN}', "not valid JSON"),
        (b'{"a":-Infinity}', "not valid JSON"),
        (b"[1e999]", "not valid JSON"),
        (b'["\\ud800"]', "not valid JSON"),
        (b'["\xff"]', "not valid JSON"),
        (b"\xef\xbb\xbf{}", "byte order mark"),
        (b'{"a":1', "not valid JSON"),
        (b"", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b"[" * 1_010 + b"]" * 1_010, "nested too deeply"),
    ],
)
def test_ambiguous_or_damaged_json_is_refused(data, phrase):
    with pytest.raises(ValueError, match=phrase):
        parse_json(data)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"gone\.json: No such file"):
        read_json(tmp_path / "gone.json")
    (tmp_path / "torn.json").write_bytes(b'{"a":')
    with pytest.raises(UsageError, match=r"torn\.json: not valid JSON"):
        read_json(tmp_path / "torn.json")


@pytest.mark.parametrize(
    ("data", "phrase"), [(b"[18446744073709551616]", "64 bits"), (b"[" * 300 + b"]" * 300, "deep")]
)
def test_a_file_that_could_not_be_written_again_is_refused(tmp_path, data, phrase):
    (tmp_path / "x.json").write_bytes(data)
    with pytest.raises(UsageError, match=rf"x\.json: .*{phrase}"):
        read_json(tmp_path / "x.json")
