"""Ids, duplicates, limits, and what a manifest pins."""

import json
import sys
from pathlib import Path

import pytest

import detharness.eval.tasks as package
from detharness.errors import UsageError
from detharness.eval.tasks import load_task, loading, task_names
from detharness.eval.tasks.task import Template
from detharness.records.digests import sha256_value


def problem(number, **changed):
    return {"problem": f"P{number}", "answer": number, **changed}


def refusal(path, task="aime2026"):
    with pytest.raises(UsageError) as caught:
        load_task(task, path)
    return str(caught.value)


def test_the_tasks_are_found_by_being_there():
    assert task_names() == ("aime2026", "arithmetic-mini", "gpqa-diamond", "hle", "hle-text")


def test_an_unknown_task_is_refused_with_those_there_are():
    with pytest.raises(UsageError, match="unknown task 'gsm8k': there are aime2026, arithmetic-mini, gpqa-diamond"):
        load_task("gsm8k", None)


def test_nothing_is_downloaded():
    with pytest.raises(UsageError, match="needs your copy of its data: name it with --data; nothing is downloaded"):
        load_task("aime2026", None)


def test_rows_without_an_id_are_known_by_position_and_digest(lines, tmp_path):
    rows = [problem(1), problem(2, id=""), problem(3, id="x")]
    loaded = load_task("aime2026", lines(*rows)).rows
    digests = [sha256_value(row) for row in rows]
    assert [row.row_digest for row in loaded] == digests
    assert [row.task_id for row in loaded] == [f"row-1-{digests[0][:12]}", f"row-2-{digests[1][:12]}", "x"]
    spaced = tmp_path / "spaced.jsonl"  # The position is the row's, not the line's.
    spaced.write_text("\n\n".join(json.dumps(row) for row in rows))
    again = load_task("aime2026", spaced).rows
    assert [row.task_id for row in again] == [row.task_id for row in loaded]
    assert [row.line for row in again] == [1, 3, 5]


def test_the_same_row_twice_is_refused_with_or_without_an_id(lines):
    path = lines(problem(1), problem(2), problem(1))
    assert refusal(path) == f"{path}, line 3: the same row stands already in {path}, line 1"
    path = lines(problem(1, id=7), problem(2, id="7"))
    assert refusal(path) == f"{path}, line 2: the id '7' stands already in {path}, line 1"
    path = lines(problem(1, id="a"), problem(2, id=" a"))
    assert refusal(path) == f"{path}, line 2: the id 'a' stands already in {path}, line 1"


@pytest.mark.parametrize("name", [1.0, True, ["a"], {"a": 1}])
def test_an_id_of_another_type_is_refused(lines, name):
    assert "line 1: the id must be a text or a whole number" in refusal(lines(problem(1, id=name)))


def test_columns_that_differ_in_case_alone_are_refused(lines):
    assert "line 1: the columns answer, Answer differ in case alone: leave one" in refusal(lines(problem(1, Answer=1)))


def test_the_facts_depend_on_the_rows_and_not_on_their_order(lines):
    rows = [problem(number, id=number) for number in range(5)]
    facts = load_task("aime2026", lines(*rows)).facts
    assert load_task("aime2026", lines(*rows[::-1])).facts == facts
    edited = [*rows[:4], {**rows[4], "solution": "edited"}]
    assert load_task("aime2026", lines(*edited)).facts["rows_digest"] != facts["rows_digest"]
    assert json.loads(json.dumps(facts)) == facts


def test_a_limit_takes_the_first_rows_and_the_file_must_still_be_whole(lines, choice_row, exam_row):
    rows = [problem(number) for number in range(30)]
    loaded = load_task("aime2026", lines(*rows), limit=3)
    assert [row.question for row in loaded.rows] == ["P0", "P1", "P2"]
    assert loaded.facts["matches_published"] is False
    with pytest.raises(UsageError, match="line 30"):
        load_task("aime2026", lines(*rows[:29], problem(1000)), limit=3)
    exam = lines(exam_row(0, with_image=True), exam_row(1), exam_row(2, with_image=True), exam_row(3), exam_row(4))
    assert [row.question for row in load_task("hle-text", exam, limit=2).rows] == ["What is 1?", "What is 3?"]


def test_a_file_without_a_row_of_the_task_is_refused(lines, exam_row):
    path = lines(exam_row(with_image=True))
    assert refusal(path, "hle-text") == f"{path} holds no row of the task hle-text"


def test_a_task_of_an_earlier_name_is_refused(tmp_path, monkeypatch):
    source = Path(package.__file__).with_name("aime2026.py").read_text()
    (tmp_path / "zz_second.py").write_text(source)
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
    loading._tasks.cache_clear()
    try:
        with pytest.raises(UsageError, match="are the task aime2026: rename one"):
            task_names()
    finally:
        sys.modules.pop(f"{package.__name__}.zz_second", None)
        monkeypatch.undo()
        loading._tasks.cache_clear()


def test_what_is_filled_in_is_never_filled_again():
    template = Template("t/1", "{{question}} \\boxed{} {0} {{options}}")
    assert (
        template.fill(question="{{options}} {x}", options="{{question}}")
        == "{{options}} {x} \\boxed{} {0} {{question}}"
    )
    assert template.digest != Template("t/1", template.text + " ").digest
    with pytest.raises(KeyError):
        template.fill(question="only")
