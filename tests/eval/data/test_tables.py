"""Parquet files and ``save_to_disk`` folders, written by the library that people write them with."""

import json
import sys
from datetime import date

import datasets
import pyarrow
import pyarrow.parquet
import pytest

from detharness.errors import UsageError
from detharness.eval.data import read_rows

ROWS = [
    {"id": "a", "problem": "x\u2028y", "answer": 33, "share": 0.5, "problem_type": ["Algebra", "[Number] Theory"]},
    {"id": "b", "problem": " z\n", "answer": 2**53 + 1, "share": None, "problem_type": []},
]
WITH_IMAGES = pyarrow.Table.from_pylist(
    [
        {"id": "a", "image": "", "image_preview": None},
        {"id": "b", "image": "data:", "image_preview": {"bytes": b"\x89"}},
    ],
    schema=datasets.Features(
        {"id": datasets.Value("string"), "image": datasets.Value("string"), "image_preview": datasets.Image()}
    ).arrow_schema,
)


@pytest.fixture(autouse=True)
def no_bars():
    datasets.disable_progress_bars()


@pytest.fixture(params=["parquet", "folder", "folder of one split"])
def save(request, tmp_path):
    def write(table):
        path = tmp_path / "data"  # Its name says nothing: the content does.
        if request.param == "parquet":
            pyarrow.parquet.write_table(table, path)
        elif request.param == "folder":
            datasets.Dataset(table).save_to_disk(path)
        else:
            datasets.DatasetDict({"train": datasets.Dataset(table)}).save_to_disk(path)
        return path

    return write


def test_a_table_reads_as_its_rows_would_from_json(save, tmp_path):
    lines = tmp_path / "lines"
    lines.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    path = save(pyarrow.Table.from_pylist(ROWS))
    rows = read_rows(path)
    assert [row.value for row in rows] == [row.value for row in read_rows(lines)] == ROWS
    assert [(row.line, row.where) for row in rows] == [(1, f"{path}, row 1"), (2, f"{path}, row 2")]


@pytest.mark.parametrize("how", [{}, {"lines": False}, {"force_ascii": False}, {"lines": False, "indent": 2}])
def test_what_to_json_writes_reads_as_the_table_does(tmp_path, how):
    datasets.Dataset.from_list(ROWS).to_json(tmp_path / "data", **how)
    assert [row.value for row in read_rows(tmp_path / "data")] == ROWS


@pytest.mark.parametrize("metadata", [True, False], ids=["said to be images", "images by their type alone"])
def test_images_as_the_library_holds_them_are_left_out(save, metadata):
    table = WITH_IMAGES if metadata else WITH_IMAGES.replace_schema_metadata(None)
    assert [row.value for row in read_rows(save(table))] == [{"id": "a", "image": ""}, {"id": "b", "image": "data:"}]


@pytest.mark.parametrize(
    ("value", "reason"), [(float("nan"), "nan has no JSON form"), (b"x", "bytes"), (date(2026, 1, 1), "date")]
)
def test_a_value_without_a_json_form_is_refused_by_its_row(save, value, reason):
    path = save(pyarrow.Table.from_pylist([{"answer": None}, {"answer": value}]))
    with pytest.raises(UsageError) as caught:
        read_rows(path)
    assert str(caught.value).startswith(f"{path}, row 2: $.answer: ")
    assert reason in str(caught.value)


def test_a_table_without_rows_is_refused(tmp_path):
    path = tmp_path / "data"
    pyarrow.parquet.write_table(pyarrow.table({"a": pyarrow.array([], pyarrow.string())}), path)
    with pytest.raises(UsageError, match="holds no row"):
        read_rows(path)


def test_several_splits_are_refused_by_name(tmp_path):
    one = datasets.Dataset.from_list(ROWS)
    datasets.DatasetDict({"train": one, "test": one}).save_to_disk(tmp_path / "both")
    with pytest.raises(UsageError, match=r"several splits \(train, test\): name the folder of one"):
        read_rows(tmp_path / "both")
    assert len(read_rows(tmp_path / "both" / "test")) == 2


def test_what_is_no_table_is_refused_in_one_line(tmp_path):
    (tmp_path / "torn").write_bytes(b"PAR1 and no more")
    for path in (tmp_path, tmp_path / "torn"):
        with pytest.raises(UsageError) as caught:
            read_rows(path)
        assert str(caught.value).startswith(f"{path} cannot be read as a table: ")
        assert "\n" not in str(caught.value)


def test_reading_parquet_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    path = tmp_path / "data"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), path)
    assert len(read_rows(path)) == 2
    assert list(tmp_path.iterdir()) == [path]


def test_without_the_library_a_table_is_refused_with_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UsageError, match=r"needs the package datasets: pip install 'detharness\[data\]'"):
        read_rows(tmp_path)
