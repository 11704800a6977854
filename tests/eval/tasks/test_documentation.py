"""What docs/tasks.md shows runs as it stands."""

import re
import sys
from pathlib import Path

import datasets
import pyarrow
import pytest

import detharness.eval.tasks as package
from detharness.errors import UsageError
from detharness.eval.tasks import load_task, loading, task_names

PAGE = (Path(__file__).parents[3] / "docs" / "tasks.md").read_text()
EXPORT, MODULE = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
(DATA,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def claims(tmp_path, monkeypatch):
    """The package with the page's module in it, and the page's file."""
    folder = tmp_path / "tasks"
    folder.mkdir()
    (folder / "claims.py").write_text(MODULE)
    (tmp_path / "claims.jsonl").write_text(DATA)
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(folder)])
    loading._tasks.cache_clear()
    yield tmp_path / "claims.jsonl"
    loading._tasks.cache_clear()
    del sys.modules[f"{package.__name__}.claims"], package.claims


def test_a_task_is_added_by_one_module(claims):
    assert "claims" in task_names()
    loaded = load_task("claims", claims)
    assert loaded.facts["matches_published"] is True
    assert loaded.facts["gold_letters"] == {"A": 1, "B": 1}
    assert [(row.task_id, row.gold) for row in loaded.rows] == [("1", "A"), ("2", "B")]
    assert loaded.rows[0].messages[0]["content"] == (
        "Every square is a rectangle.\n\nA. It holds.\nB. It does not hold.\n\n"
        "Reply with one line of the form: Answer: LETTER"
    )


def test_a_row_that_does_not_fit_the_added_task_is_refused_like_any_other(claims):
    claims.write_text(DATA + '{"claim": "Maybe.", "holds": 1}\n')
    with pytest.raises(UsageError, match="line 3: the verdict must be true or false, not 1"):
        load_task("claims", claims)


def test_the_export_gives_files_that_are_read(tmp_path, monkeypatch, choice_row, exam_row):
    text = datasets.Value("string")
    exam = [exam_row(0), exam_row(1, with_image=True, question="Line\u2028separator / slash?")]
    features = datasets.Features(
        dict.fromkeys(exam[0], text) | {"image_preview": datasets.Image(), "rationale_image": datasets.Image()}
    )
    published = {
        ("MathArena/aime_2026", "train"): datasets.Dataset.from_list(
            [{"problem_idx": 1, "problem": "P", "answer": 33, "problem_type": ["Algebra"]}]
        ),
        ("Idavidrein/gpqa", "gpqa_diamond", "train"): datasets.Dataset.from_list([choice_row(1), choice_row(2)]),
        ("cais/hle", "test"): datasets.Dataset(
            pyarrow.Table.from_pylist(
                [{**row, "image_preview": {"bytes": b"x"}} for row in exam], features.arrow_schema
            )
        ),
    }
    datasets.disable_progress_bars()
    monkeypatch.setattr(datasets, "load_dataset", lambda *names, split: published[*names, split])
    monkeypatch.chdir(tmp_path)
    exec(compile(EXPORT, "docs/tasks.md", "exec"), {})
    (problem,) = load_task("aime2026", tmp_path / "aime2026.jsonl").rows
    assert (problem.task_id, problem.gold) == ("1", "33")
    assert [row.task_id for row in load_task("gpqa-diamond", tmp_path / "gpqa_diamond.jsonl").rows] == [
        "rec00000000000001",
        "rec00000000000002",
    ]
    rows = load_task("hle", tmp_path / "hle.jsonl").rows
    assert [row.modality for row in rows] == ["text", "image"]
    assert rows[1].question == exam[1]["question"]


def test_the_tables_hold_the_tasks_there_are():
    rows = dict(re.findall(r"^\| `([a-z0-9-]+)` \| ([0-9,]+)", PAGE, re.MULTILINE))
    counts = {name: sum(loading._tasks()[name].published.values()) for name in task_names()}
    assert {name: int(count.replace(",", "")) for name, count in rows.items()} == counts
    samples = re.findall(r"^\| `([a-z0-9-]+)` \| [0-9][^|]*\| ([0-9]+) \|", PAGE, re.MULTILINE)
    assert {name: int(count) for name, count in samples} == {n: loading._tasks()[n].samples for n in task_names()}
