"""Humanity's Last Exam: which rows have an image, how images travel, and the loader case L04."""

import base64

import datasets
import pyarrow
import pyarrow.parquet
import pytest

from detharness.errors import UsageError
from detharness.eval.records import TaskRow
from detharness.eval.tasks import load_task, messages_for
from detharness.records.digests import sha256_bytes


@pytest.fixture
def whole_exam(lines, exam_row):
    return lines(*(exam_row(number, with_image=number % 7 == 0 and number < 7 * 342) for number in range(2500)))


def test_a_whole_exam_matches_the_published_counts(whole_exam):
    loaded = load_task("hle", whole_exam)
    assert loaded.facts["counts"] == {"text": 2158, "image": 342}
    assert loaded.facts["matches_published"] is True
    assert loaded.facts["gold_letters"] is None
    assert len(loaded.images) == 342


def test_hle_text_takes_the_rows_without_an_image(whole_exam):
    loaded = load_task("hle-text", whole_exam)
    assert loaded.facts["counts"] == {"text": 2158, "image": 0}
    assert loaded.facts["matches_published"] is True
    assert not loaded.images


@pytest.mark.parametrize(("rows", "images"), [(2500, 341), (2499, 342), (2700, 342)])
def test_other_counts_are_legal_and_named(lines, exam_row, rows, images):
    path = lines(*(exam_row(number, with_image=number < images) for number in range(rows)))
    facts = load_task("hle", path).facts
    assert facts["matches_published"] is False
    assert facts["counts"] == {"text": rows - images, "image": images}


def test_l04_modality_is_read_from_image_alone(lines, exam_row):
    preview = {"image_preview": {"path": "x.png"}, "rationale_image": None}
    path = lines(exam_row(1), exam_row(2, with_image=True), exam_row(3, **preview), exam_row(4, image=None))
    assert [row.modality for row in load_task("hle", path).rows] == ["text", "image", "text", "text"]


@pytest.mark.parametrize("task", ["hle", "hle-text"])
def test_an_export_without_its_image_column_is_refused(lines, exam_row, task):
    row = exam_row()
    del row["image"]
    with pytest.raises(UsageError, match="line 1: no column for the image: it may be called image"):
        load_task(task, lines(row))


@pytest.mark.parametrize("image", [{"bytes": None, "path": "x.png"}, ["data:"], 3])
def test_an_image_that_is_no_text_is_refused(lines, exam_row, image):
    with pytest.raises(UsageError, match="line 1: image must be a data URI or an empty text"):
        load_task("hle", lines(exam_row(image=image)))


@pytest.mark.parametrize(
    "image",
    [
        *(" ", "x.png", "https://example.org/x.png", "data:", "data:image/png;base64,", "data:image/png,AAAA"),
        *(
            "data:text/html;base64,AAAA",
            "data:image/png;base64,AAA",
            "data:image/png;base64,AA\nAA",
            "data:image/png;base64,AA*AA",
        ),
        "data:image/png;base64,AAAA\n",
    ],
)
def test_an_image_that_is_no_data_uri_is_refused(lines, exam_row, image):
    with pytest.raises(UsageError, match="line 1: image must be a data URI"):
        load_task("hle", lines(exam_row(image=image)))


def test_an_image_is_recorded_by_digest_and_sent_as_it_is(lines, exam_row):
    uri = "data:image/jpeg;base64," + base64.b64encode(b"picture").decode()
    loaded = load_task("hle", lines(exam_row(7, image=uri)))
    (row,) = loaded.rows
    text, image = row.messages[0]["content"]
    assert text["type"] == "text"
    assert text["text"].startswith("What is 7?\n")
    assert image == {"type": "image", "digest": sha256_bytes(b"picture"), "uri_digest": sha256_bytes(uri.encode())}
    assert messages_for(row, loaded.images) == [
        {"role": "user", "content": [text, {"type": "image_url", "image_url": {"url": uri}}]}
    ]


def test_an_image_of_another_file_is_not_sent(lines, exam_row):
    (row,) = load_task("hle", lines(exam_row(with_image=True))).rows
    with pytest.raises(UsageError, match="is not in the run: name the data file"):
        messages_for(row, {})
    with pytest.raises(UsageError, match="is not the one in the run"):
        messages_for(row, {row.task_id: "data:image/png;base64,AAAA"})


def test_a_text_row_is_sent_as_it_is_recorded(lines, exam_row):
    (row,) = load_task("hle", lines(exam_row())).rows
    assert isinstance(row, TaskRow)
    assert messages_for(row, {}) == list(row.messages)


@pytest.mark.parametrize("answer", ["42", r"$\frac{1}{2}$", "[a], [b]", "Z"])
@pytest.mark.parametrize("kind", ["exactMatch", "multipleChoice"])
def test_the_answer_stays_a_text(lines, exam_row, answer, kind):
    (row,) = load_task("hle", lines(exam_row(answer=answer, answer_type=kind))).rows
    assert (row.gold, row.extra, row.options) == (answer, {"answer_type": kind}, None)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"answer_type": "exact_match"}, "answer_type must be exactMatch or multipleChoice, not 'exact_match'"),
        ({"answer_type": None}, "answer_type must be exactMatch or multipleChoice, not None"),
        ({"answer": None}, "the answer must be a text with something in it, not None"),
        ({"answer": 42}, "the answer must be a text with something in it, not 42"),
        ({"question": ""}, "the question must be a text with something in it, not ''"),
    ],
)
def test_a_field_that_does_not_fit_is_refused_by_its_line(lines, exam_row, changed, said):
    path = lines(exam_row(1), exam_row(2, **changed))
    with pytest.raises(UsageError) as caught:
        load_task("hle", path)
    assert str(caught.value) == f"{path}, line 2: {said}"


def test_parquet_gives_the_digests_of_the_lines(lines, tmp_path, exam_row):
    rows = [exam_row(number, with_image=number == 1) for number in range(3)]
    features = datasets.Features(
        {name: datasets.Value("string") for name in rows[0]}
        | {"image_preview": datasets.Image(), "rationale_image": datasets.Image()}
    )
    table = pyarrow.Table.from_pylist(
        [{**row, "image_preview": {"bytes": b"x"}} for row in rows], features.arrow_schema
    )
    pyarrow.parquet.write_table(table, tmp_path / "hle.parquet")
    from_lines, from_parquet = load_task("hle", lines(*rows)), load_task("hle", tmp_path / "hle.parquet")
    assert from_parquet.facts == from_lines.facts
    assert from_parquet.images == from_lines.images
    assert [row.messages for row in from_parquet.rows] == [row.messages for row in from_lines.rows]
