"""arithmetic-mini: 20 small problems of our own, so that everything can be tried without a data file."""

from detharness.eval.tasks.integers import read_integer_row
from detharness.eval.tasks.task import Task, Template

TASK = Task(
    name="arithmetic-mini",
    version=1,
    answer_kind="integer",
    template=Template("arithmetic-mini/1", "{{question}} End with a line of the form: Answer: NUMBER"),
    samples=4,
    published={"text": 20, "image": 0},
    read=read_integer_row,
    packaged="arithmetic_mini.jsonl",
)
