"""AIME 2026: 30 problems with an integer answer from 0 to 999."""

from detharness.eval.tasks.integers import read_integer_row
from detharness.eval.tasks.task import Task, Template

TASK = Task(
    name="aime2026",
    version=1,
    answer_kind="integer",
    template=Template(
        "aime/1",
        "Here is a competition problem whose answer is a whole number from 0 to 999.\n\n{{question}}\n\n"
        "Work it out step by step. Write the answer alone inside \\boxed{} at the end.",
    ),
    samples=32,
    published={"text": 30, "image": 0},
    read=read_integer_row,
)
