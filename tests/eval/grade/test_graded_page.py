"""report.html of a graded run: every cell in its class, excerpts within 5 MB, hostile text kept as text."""

import json
import re

import pytest

from detharness.eval.grade.page import KINDS, GradePage

REPORT = {
    "task": "aime2026",
    "pass_at_1": 0.75,
    "coverage_complete": True,
    "coverage": {
        "expected": 4,
        "present": 4,
        "graded": 4,
        "missing": 0,
        "errors": 0,
        "by_modality": {"text": {"expected": 4, "present": 4, "graded": 4, "missing": 0, "errors": 0}},
    },
    "bounds": {"lower": 0.75, "upper": 0.75},
    "stderr_between_tasks": 0.25,
    "stderr_sampling": None,
    "counts": {"truncated": 1},
    "matches_published": False,
    "generation_root": "c" * 64,
    "warnings": [],
}


def verdict(generation, name="correct", extracted=33, flags=()):
    return {
        "task_id": generation.task_id,
        "sample_index": generation.sample_index,
        "verdict": name,
        "extracted": extracted,
        "flags": list(flags),
    }


def data_of(page):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page)[1])


def test_each_cell_is_drawn_in_its_class(runs):
    row = runs.row("t'0", question="<i>How many?")
    page = GradePage([row], 5)
    answers = [runs.answer(row, sample, f"<script>{sample}</script>") for sample in range(3)]
    page.add(verdict(answers[0]), answers[0])
    page.add(verdict(answers[1], "incorrect", 34, ["fallback"]), answers[1])
    page.add(verdict(answers[2], "ambiguous", None), answers[2])
    failure = runs.failure(row, 3)
    page.add(verdict(failure, "error", None), failure)
    made = page.render(REPORT)
    data = data_of(made)
    cells = data["rows"][0]["cells"]
    kinds = [data["kinds"][cell["kind"]]["label"] for cell in cells]
    assert kinds == ["correct", "wrong", "no answer, ambiguous or not judged", "error", "missing"]
    assert [[data["tags"][tag] for tag in cell["tags"]] for cell in cells] == [[], ["fallback"], ["ambiguous"], [], []]
    assert cells[0]["panes"] == [{"title": "Reply", "before": "<script>0</script>", "marked": "", "after": ""}]
    assert ["error", "http_500: it broke"] in cells[3]["facts"]
    assert ["in full", """detharness eval verify RUN --show 't'"'"'0:1'"""] in cells[1]["facts"]
    assert "<script>0" not in made
    assert "<i>" not in made
    assert "Pass@1 0.7500" in made


def test_an_incomplete_run_shows_bounds_in_place_of_a_score(runs):
    report = REPORT | {"pass_at_1": None, "bounds": {"lower": 0.125, "upper": 0.875}, "warnings": ["all <b> alike"]}
    made = GradePage([runs.row()], 1).render(report)
    assert "No Pass@1" in made
    assert "between 0.1250" in made
    assert "0.8750" in made
    assert "<li>all &lt;b&gt; alike</li>" in made


@pytest.mark.parametrize("text", ["word " * 26_000, "<&\u202e" * 40_000], ids=["plain", "hostile"])
def test_the_page_of_a_120_mb_run_stays_below_5_mb(runs, text):
    rows = [runs.row(f"t{number}", question=text) for number in range(30)]
    page = GradePage(rows, 32)
    for row in rows:
        for sample in range(32):
            answer = runs.answer(row, sample, text, reasoning=text)
            page.add(verdict(answer, "incorrect", text[:500], ["out_of_range"]), answer)
    made = page.render(REPORT)
    assert len(made.encode()) < 5_000_000
    assert len(data_of(made)["rows"][29]["cells"]) == 32


@pytest.mark.parametrize(("tasks", "samples"), [(1, 10_000), (2_500, 4)])
def test_the_page_of_10_000_samples_stays_below_5_mb_and_draws_them_all(runs, tasks, samples):
    rows = [runs.row(f"t{number}", question="<&\u202e" * 20) for number in range(tasks)]
    page = GradePage(rows, samples)
    for row in rows:
        for sample in range(samples):
            answer = runs.answer(row, sample, "<&\u202e" * 50)
            page.add(verdict(answer, "incorrect", "1" * 80), answer)
    made = page.render(REPORT)
    assert len(made.encode()) < 5_000_000
    assert sum(len(row["cells"]) for row in data_of(made)["rows"]) == 10_000


def test_each_class_has_a_shape_of_its_own():
    assert len({kind.glyph for kind in KINDS}) == len(KINDS)
