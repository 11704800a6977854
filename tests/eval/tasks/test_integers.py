"""AIME files as ten sources publish them, and the loader cases L07, L08 and L11."""

import pytest

from detharness.errors import UsageError
from detharness.eval.tasks import load_task

SOURCES = {
    "MathArena/aime_2026": {"problem_idx": 7, "problem": "P", "answer": 33, "problem_type": ["Algebra", "Geometry"]},
    "Maxwell-Jia/AIME_2024": {"ID": "2024-II-4", "Problem": "P", "Solution": "It is 33.", "Answer": 33},
    "HuggingFaceH4/aime_2024": {
        **{"id": 60, "problem": "P", "solution": "It is 33.", "answer": "033"},
        **{"url": "https://example.org", "year": "2024"},
    },
    "math-ai/aime25": {"problem": "P", "answer": "33", "id": "0"},
    "yentinglin/aime_2025": {"problem": "P", "answer": "33", "solution": None, "year": 2025},
    "opencompass/AIME2025": {"question": "P", "answer": "33"},
    "gneubig/aime-1983-2024": {
        **{"ID": "1983-1", "Year": 1983, "Problem Number": 1},
        **{"Question": "P", "Answer": "33", "Part": None},
    },
    "OpenCompass local 2024": {"origin_prompt": "P", "gold_answer": "33"},
    "OpenCompass local 2026": {"problem": "P", "answer": 33},
    "NeMo-Skills": {"id": "aime26-7", "problem": "P", "expected_answer": "33"},
    "evalchemy": {"id": "I-1", "problem": "P", "solution": "", "answer": "33", "url": "https://example.org"},
}
IDS = {
    "MathArena/aime_2026": "7",
    "Maxwell-Jia/AIME_2024": "2024-II-4",
    "HuggingFaceH4/aime_2024": "60",
    "math-ai/aime25": "0",
    "gneubig/aime-1983-2024": "1983-1",
    "NeMo-Skills": "aime26-7",
    "evalchemy": "I-1",
}


@pytest.mark.parametrize("source", SOURCES)
def test_every_source_is_read_by_its_own_columns(lines, source):
    (row,) = load_task("aime2026", lines(SOURCES[source])).rows
    assert (row.question, row.gold, row.options, row.permutation) == ("P", "33", None, None)
    assert row.task_id == IDS.get(source, f"row-1-{row.row_digest[:12]}")


@pytest.mark.parametrize("question", ["problem", "question", "problem_text", "origin_prompt", "PROBLEM"])
@pytest.mark.parametrize("gold", ["answer", "expected_answer", "gold_answer", "target", "Target"])
@pytest.mark.parametrize("name", ["id", "problem_idx", "problem_id", "idx", "index", "Index"])
def test_every_alias_is_read_whatever_its_case(lines, question, gold, name):
    (row,) = load_task("aime2026", lines({name: 4, question: "P", gold: 5})).rows
    assert (row.task_id, row.question, row.gold) == ("4", "P", "5")


def test_an_empty_column_gives_way_to_the_next_of_its_meaning(lines):
    row = {"id": None, "problem_idx": 4, "problem": None, "question": "P", "answer": None, "expected_answer": 5}
    (row,) = load_task("aime2026", lines(row)).rows
    assert (row.task_id, row.question, row.gold) == ("4", "P", "5")


@pytest.mark.parametrize(
    ("gold", "read"),
    [
        *[(value, "33") for value in (33, "33", "033", 33.0, "33.0", " 33 \n", 3.3e1)],
        *[(value, "0") for value in (0, "0", "000", 0.0)],
        *[(value, "999") for value in (999, "999")],
    ],
)
def test_l07_a_gold_is_a_canonical_integer(lines, gold, read):
    (row,) = load_task("aime2026", lines({"problem": "P", "answer": gold})).rows
    assert row.gold == read


@pytest.mark.parametrize(
    "gold",
    [
        *[None, "", "thirty-three", "33 or 34", [33], True],
        *[1000, "1000", -1, "-1", -0.0, 33.5, "33.5", 2**63, "9" * 5000],
        *["1e2", "3_3", "\u0663\u0663"],
    ],
)
def test_l08_any_other_gold_is_refused_with_file_and_line(lines, gold):
    path = lines({"problem": "P", "answer": 1}, {"problem": "Q", "answer": gold})
    with pytest.raises(UsageError) as caught:
        load_task("aime2026", path)
    assert str(caught.value).startswith(f"{path}, line 2: the answer must be a whole number from 0 to 999, not ")
    assert len(str(caught.value)) < len(str(path)) + 140


@pytest.mark.parametrize("problem", [None, "", " \n", 3, ["P"]])
def test_a_problem_must_be_a_text(lines, problem):
    path = lines({"problem": problem, "answer": 1})
    with pytest.raises(UsageError, match="line 1: the problem must be a text with something in it"):
        load_task("aime2026", path)


@pytest.mark.parametrize(("missing", "named"), [("problem", "origin_prompt"), ("answer", "gold_answer")])
def test_a_missing_column_is_named_with_what_it_may_be_called(lines, missing, named):
    row = {"problem": "P", "answer": 1}
    del row[missing]
    with pytest.raises(UsageError, match=f"line 1: no column for the {missing}: it may be called .*{named}"):
        load_task("aime2026", lines(row))


def test_l11_a_part_of_the_benchmark_is_legal_and_named(lines):
    rows = [{"id": number, "problem": f"P{number}", "answer": number} for number in range(30)]
    whole = load_task("aime2026", lines(*rows)).facts
    assert whole["matches_published"] is True
    part = load_task("aime2026", lines(*rows[:29])).facts
    assert part["matches_published"] is False
    assert (part["counts"], part["published"]) == ({"text": 29, "image": 0}, {"text": 30, "image": 0})


def test_the_problem_is_shown_as_it_stands_but_for_blanks_around_it(lines):
    problem = r"Let $\frac{a}{b} = {{question}}$ and {0} \boxed{x}."
    (row,) = load_task("aime2026", lines({"problem": f"\n {problem}\n", "answer": 1})).rows
    assert row.question == problem
    (message,) = row.messages
    assert message["role"] == "user"
    assert message["content"].count(problem) == 1
    assert r"\boxed{}" in message["content"]


def test_the_packaged_problems_need_no_file():
    loaded = load_task("arithmetic-mini", None)
    assert loaded.facts["matches_published"] is True
    assert loaded.rows[0].messages[0]["content"] == 'What is 2 + 3? Say "The answer is" and the number.'
