"""Two hand-written runs, judged by a rule that a test can read at a glance."""

import pytest

from detharness.eval.compare.report import Graded, Regraded, compare_runs
from detharness.eval.compare.sides import Judged, read_sides
from detharness.eval.runs import open_run


def judge(generation):
    """The reply's last word against the number in the task's messages: "33" is right."""
    word = (generation.output.text or "").split()[-1:]
    if not word:
        return Judged("no_answer", None)
    return Judged("correct" if word[0] == "33" else "incorrect", word[0])


class Pairs:
    """Makes ``Graded`` sides and compares them."""

    def __init__(self, runs):
        self.runs = runs
        self.count = 0

    def graded(self, rows, answers, *, samples=2, rule=judge, complete=None, fingerprint="f"):
        self.count += 1
        folder = self.runs.write(rows, answers, samples=samples, name=f"run{self.count}")
        run = open_run(folder)
        verdicts = {answer.cell: rule(answer) for answer in answers if answer.output is not None}
        sides = read_sides(run, verdicts)
        whole = len(sides.cells) == len(rows) * samples
        return Graded(sides, fingerprint, whole if complete is None else complete, stored=True)

    def compare(self, a, b, regraded=None):
        same = {cell: side.judged for cell, side in a.sides.cells.items()}
        return compare_runs(a, b, Regraded(same, None) if regraded is None else regraded)


@pytest.fixture
def pairs(runs):
    return Pairs(runs)


@pytest.fixture
def rows(runs):
    return [runs.row(f"t{number}", line=number + 1) for number in range(3)]
