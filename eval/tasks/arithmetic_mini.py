"""arithmetic-mini: 20 small problems of our own, so that everything can be tried without a data file.

The smallest chat models get some right and some wrong: SmolLM2-135M-Instruct about half, greedily.
"""

from pathlib import Path

from detharness.eval.tasks.integers import read_integer_row
from detharness.eval.tasks.task import Task, Template

TASK = Task(
    name="arithmetic-mini",
    version=1,
    answer_kind="integer",
    template=Template("arithmetic-mini/1", '{{question}} Say "The answer is" and the number.'),
    samples=4,
    published={"text": 20, "image": 0},
    read=read_integer_row,
    packaged=Path(__file__).with_suffix(".jsonl"),
)
