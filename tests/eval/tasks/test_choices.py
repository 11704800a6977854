"""GPQA Diamond: the order of the options, rows that are in order already, and the loader cases L01 to L03 and L09."""

import csv
import random
from collections import Counter

import pytest

from detharness.errors import UsageError
from detharness.eval.tasks import load_task
from detharness.eval.tasks.task import LETTERS, shuffled


def refusal(path):
    with pytest.raises(UsageError) as caught:
        load_task("gpqa-diamond", path)
    assert str(caught.value).startswith(f"{path}, line 1: ")
    return str(caught.value)


def test_the_gold_letter_follows_the_correct_answer(lines, choice_row):
    rows = [choice_row(number) for number in range(60)]
    loaded = load_task("gpqa-diamond", lines(*rows)).rows
    assert len({row.permutation for row in loaded}) > 10
    for row, source in zip(loaded, rows, strict=True):
        raw = [source["Correct Answer"], *(source[f"Incorrect Answer {wrong}"] for wrong in (1, 2, 3))]
        assert row.task_id == source["Record ID"]
        assert row.options == tuple(raw[index] for index in row.permutation)
        assert row.options[LETTERS.index(row.gold)] == source["Correct Answer"]
        shown = row.messages[0]["content"]
        assert all(f"\n{letter}. {text}\n" in shown for letter, text in zip("ABCD", row.options, strict=True))


def test_the_order_depends_on_seed_and_id_and_on_nothing_else(lines, choice_row):
    rows = [choice_row(number) for number in range(20)]
    orders = {row.task_id: row.permutation for row in load_task("gpqa-diamond", lines(*rows)).rows}
    changed = [{**row, "Question": "Another?", "Subdomain": None, "Correct Answer": "other"} for row in rows]
    random.seed(3)
    state = random.getstate()
    again = load_task("gpqa-diamond", lines(*changed[::-1][:7]))
    assert random.getstate() == state
    assert {row.task_id: row.permutation for row in again.rows}.items() <= orders.items()
    reseeded = load_task("gpqa-diamond", lines(*rows), shuffle_seed=1).rows
    assert sum(row.permutation != orders[row.task_id] for row in reseeded) > 10


def test_the_order_of_a_record_is_the_same_in_every_version():
    assert [shuffled(4, seed, "rec-0") for seed in range(4)] == [(0, 2, 3, 1), (0, 1, 2, 3), (0, 1, 2, 3), (0, 1, 3, 2)]


def test_a_full_set_matches_the_published_counts_and_its_letters_are_counted(lines, choice_row):
    facts = load_task("gpqa-diamond", lines(*(choice_row(number) for number in range(198)))).facts
    assert facts["matches_published"] is True
    assert sum(facts["gold_letters"].values()) == 198
    assert all(30 < facts["gold_letters"][letter] < 70 for letter in "ABCD")  # 49.5 expected, standard deviation 6.1


def test_l01_two_equal_distractors_are_accepted(lines, choice_row):
    row = choice_row(**{"Incorrect Answer 1": "same", "Incorrect Answer 3": "same"})
    (row,) = load_task("gpqa-diamond", lines(row)).rows
    assert Counter(row.options)["same"] == 2


def test_a_distractor_equal_to_the_correct_answer_is_refused(lines, choice_row):
    row = choice_row(**{"Correct Answer": "same ", "Incorrect Answer 3": "same"})
    assert "the correct answer is also an incorrect one" in refusal(lines(row))


def test_l02_options_are_shown_trimmed_and_their_digest_is_on_the_raw_text(lines, choice_row):
    (raw,) = load_task("gpqa-diamond", lines(choice_row(**{"Correct Answer": "  two\nlines \n"}))).rows
    (trimmed,) = load_task("gpqa-diamond", lines(choice_row(**{"Correct Answer": "two\nlines"}))).rows
    assert raw.options[LETTERS.index(raw.gold)] == "two\nlines"
    assert (raw.options, raw.gold, raw.messages) == (trimmed.options, trimmed.gold, trimmed.messages)
    assert raw.row_digest != trimmed.row_digest


def test_l03_square_brackets_stay(lines, choice_row):
    names = ("Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")
    texts = ("[1]", "bicyclo[2.2.1]heptane", "[[a], [b]]", "x [title] y")
    (row,) = load_task("gpqa-diamond", lines(choice_row(**dict(zip(names, texts, strict=True))))).rows
    assert sorted(row.options) == sorted(texts)
    assert all(text in row.messages[0]["content"] for text in texts)


def test_numeric_options_stay_texts(lines, choice_row):
    (row,) = load_task("gpqa-diamond", lines(choice_row(**{"Correct Answer": "007.50"}))).rows
    assert row.options[LETTERS.index(row.gold)] == "007.50"
    assert "the option must be a text" in refusal(lines(choice_row(**{"Incorrect Answer 2": 7.5})))


@pytest.mark.parametrize("column", ["Correct Answer", "Incorrect Answer 2", "Question"])
def test_an_empty_field_is_refused(lines, choice_row, column):
    assert "must be a text with something in it, not None" in refusal(lines(choice_row(**{column: None})))


def test_l09_a_csv_with_newlines_in_its_fields_reads_like_the_lines(lines, tmp_path, choice_row):
    raw = [
        choice_row(number, **{"Incorrect Answer 1": f"a\nb {number}", "Question": "One,\r\ntwo?"}) for number in (1, 2)
    ]
    path = tmp_path / "gpqa_diamond.csv"
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, raw[0])
        writer.writeheader()
        writer.writerows(raw)
    texts = [(row.task_id, row.options, row.gold, row.messages) for row in load_task("gpqa-diamond", path).rows]
    assert texts == [(r.task_id, r.options, r.gold, r.messages) for r in load_task("gpqa-diamond", lines(*raw)).rows]


OPTIONS = ["red", " green", "blue [x]", "7"]


@pytest.mark.parametrize("question", ["Question", "problem", "prompt"])
@pytest.mark.parametrize("options", ["choices", "options"])
@pytest.mark.parametrize("gold", ["answer", "answer_idx", "expected_answer"])
def test_a_row_in_order_is_not_shuffled_again(lines, question, options, gold):
    (row,) = load_task("gpqa-diamond", lines({"id": "q1", question: "Which?", options: OPTIONS, gold: "B"})).rows
    assert (row.task_id, row.options, row.permutation, row.gold) == ("q1", ("red", "green", "blue [x]", "7"), None, "B")


def test_options_under_their_letters_are_read_in_their_order(lines):
    row = {"question": "Which?", "options": {"B": "two", "A": "one", "C": "three"}, "answer": "C"}
    (row,) = load_task("gpqa-diamond", lines(row)).rows
    assert (row.options, row.gold) == (("one", "two", "three"), "C")


@pytest.mark.parametrize(
    ("answer", "letter"),
    [("A", "A"), ("d", "D"), (" B ", "B"), (0, "A"), (3, "D"), ("green", "B"), ("blue [x]", "C"), ("7", "D")],
)
def test_the_answer_of_a_row_in_order_is_a_letter_an_index_or_a_text(lines, answer, letter):
    (row,) = load_task("gpqa-diamond", lines({"question": "Which?", "choices": OPTIONS, "answer": answer})).rows
    assert row.gold == letter


@pytest.mark.parametrize("answer", ["E", "e", 4, -1, True, False, 1.0, "1", "gre", "", None, ["A"]])
def test_any_other_answer_is_refused(lines, answer):
    said = refusal(lines({"question": "Which?", "choices": OPTIONS, "answer": answer}))
    assert "is no letter, index or text of its 4 options" in said


@pytest.mark.parametrize(
    ("options", "answer"), [(["B", "A", "C", "D"], "A"), (["same", "same", "x"], "same")], ids=["letter", "text"]
)
def test_an_answer_that_could_mean_two_options_is_refused(lines, options, answer):
    said = refusal(lines({"question": "Which?", "choices": options, "answer": answer}))
    assert f"is more than one of its {len(options)} options" in said


def test_an_option_that_is_its_own_letter_is_no_conflict(lines):
    (row,) = load_task("gpqa-diamond", lines({"question": "Which?", "choices": ["A", "B"], "answer": "B"})).rows
    assert row.gold == "B"


@pytest.mark.parametrize("options", [None, "A) x B) y", ["one"], [], {}, {"A": "x", "C": "y"}, {"a": "x", "b": "y"}, 3])
def test_options_in_another_form_are_refused(lines, options):
    said = refusal(lines({"question": "Which?", "choices": options, "answer": "A"}))
    assert "the options must be a list of 2 to 26 texts, or an object with keys A, B, ..." in said
