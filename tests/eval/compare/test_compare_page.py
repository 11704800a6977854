"""compare.html: both sides of a cell, the first difference marked, hostile text kept as text."""

import json
import re

from detharness.eval.compare.page import KINDS, compare_page


def data_of(page):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page)[1])


def kind_of(data, cell):
    return data["kinds"][cell["kind"]]["label"]


def test_two_runs_side_by_side(runs, rows, pairs):
    long = "a" * 90_000
    a = [runs.answer(row, sample, f"{long} so it is 33 now 33") for row in rows for sample in range(2)]
    b = [*a[:2], runs.answer(rows[1], 0, f"{long} so it is <b>12</b> now 33"), *a[3:5]]
    page = compare_page(pairs.compare(pairs.graded(rows, a), pairs.graded(rows, b)))
    data = data_of(page)
    assert [row["id"] for row in data["rows"]] == ["t0", "t1", "t2"]
    moved = data["rows"][1]["cells"][0]
    assert kind_of(data, moved) == "same answer, other text"
    assert [(pane["title"], pane["marked"]) for pane in moved["panes"]] == [("A", "33"), ("B", "<b>12</b>")]
    assert all(pane["before"].endswith("so it is ") for pane in moved["panes"])
    assert all(pane["after"] == " now 33" for pane in moved["panes"])
    assert "characters ...]" in moved["panes"][0]["before"]
    assert ["first difference", f"text, position {len(long) + 10}"] in moved["facts"]
    assert kind_of(data, data["rows"][2]["cells"][1]) == "in A alone"
    assert len(data["rows"][0]["cells"][0]["panes"]) == 1
    assert "<b>12" not in page
    assert len(page) < 60_000


def test_a_text_that_ends_early_is_marked_at_its_end(runs, rows, pairs):
    a = [runs.answer(rows[0], 0, "it is 33"), runs.answer(rows[0], 1, None, reasoning="so 33")]
    b = [runs.answer(rows[0], 0, "it is 33 33"), runs.answer(rows[0], 1, "33", reasoning="so 33")]
    data = data_of(compare_page(pairs.compare(pairs.graded(rows[:1], a), pairs.graded(rows[:1], b))))
    first, second = data["rows"][0]["cells"]
    assert [pane["marked"] for pane in first["panes"]] == ["[ends here]", " 33"]
    assert [pane["marked"] for pane in second["panes"]] == ["[no", "33"]
    assert second["panes"][0]["before"].startswith("[reasoning]\nso 33")


def test_the_page_of_two_large_runs_stays_below_5_mb_with_hostile_texts(runs, pairs):
    rows = [runs.row(f"t{number}", question="<script>" * 100) for number in range(30)]
    hostile = "</script>\u202e\x1b[31m\x00\u2028" * 200
    a = [runs.answer(row, sample, f"{hostile} 33") for row in rows for sample in range(32)]
    b = [runs.answer(row, sample, f"{hostile} so {hostile} 12") for row in rows for sample in range(32)]
    page = compare_page(pairs.compare(pairs.graded(rows, a, samples=32), pairs.graded(rows, b, samples=32)))
    assert 3_000_000 < len(page.encode()) < 5_000_000
    assert sum(len(row["cells"]) for row in data_of(page)["rows"]) == 960
    assert not set(page) & set("\u202e\x1b\x00\u2028")
    assert page.count("<script") == page.count("</script") == 2


def test_each_kind_has_a_shape_of_its_own():
    assert len({kind.glyph for kind in KINDS}) == len(KINDS)
