import pytest

from detharness.eval.grade.suspicions import Replays, Requests, letter_skew


def replays_of(generations):
    found = Replays()
    for generation in generations:
        found.add(generation, generation.output.digest)
    return found.warnings()


def test_equal_answers_under_different_seeds_are_suspected(runs):
    row, other = runs.row("a"), runs.row("b")
    cells = [runs.answer(row, 0), runs.answer(row, 1), runs.answer(row, 2, "else"), runs.answer(other, 0)]
    (warning,) = replays_of(cells)
    assert (warning["code"], warning["cells"], warning["tasks"]) == ("replay_suspected", 2, 1)
    assert warning["longest_characters"] == len("The answer is \\boxed{33}.")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [({"temperature": 0}, 0), ({"seed": 5}, 0), ({"temperature": 0.1}, 1), ({"seed": None}, 1)],
)
def test_only_what_was_drawn_under_other_seeds(runs, fields, expected):
    row = runs.row()
    assert len(replays_of([runs.answer(row, sample, **fields) for sample in range(2)])) == expected


def test_different_answers_are_not(runs):
    assert replays_of([runs.answer(runs.row(), sample, f"reply {sample}") for sample in range(9)]) == []


def test_requests_of_two_configurations_are_named(runs):
    rows = [runs.row(f"t{number}", question=f"{number}?") for number in range(3)]
    found = Requests()
    for row in rows:
        found.add(runs.answer(row))
    assert found.warnings() == []
    found.add(runs.answer(rows[0], 1, temperature=0.5))
    (warning,) = found.warnings()
    assert (warning["code"], warning["cells"]) == ("mixed_requests", [3, 1])


def letters(runs, golds):
    return [runs.row(f"t{number}", gold, options=tuple("wxyz")) for number, gold in enumerate(golds)]


def test_a_gold_letter_that_is_nearly_always_right_is_named(runs):
    (warning,) = letter_skew(letters(runs, "C" * 198))
    assert (warning["code"], warning["histogram"]) == ("gold_letter_skew", {"C": 198})
    assert "'C' is the right letter of 198 of 198 tasks" in warning["sentence"]


@pytest.mark.parametrize("golds", ["ABCD" * 49, "C" * 5, "A" * 65 + "B" * 44 + "C" * 45 + "D" * 44])
def test_a_fair_shuffle_is_not(runs, golds):
    assert letter_skew(letters(runs, golds)) == []
