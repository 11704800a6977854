"""GPQA Diamond: 198 questions with four options, shuffled by a hash of seed and record id, alike for every sample."""

from __future__ import annotations

from detharness.errors import UsageError
from detharness.eval.data import DataRow
from detharness.eval.tasks.task import LETTERS, Item, Task, Template, columns, id_of, pick, shuffled, text_of

_IDS = ("Record ID", "id", "record_id", "idx", "index")
_QUESTIONS = ("Question", "problem", "prompt")
_CORRECT = ("Correct Answer",)
_WRONG = ("Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")
_OPTIONS = ("choices", "options")
_GOLDS = ("answer", "answer_idx", "expected_answer")


def read_choice_row(row: DataRow, shuffle_seed: int) -> Item:
    """A row with one correct and three incorrect answers, or one whose options are in order already.

    Options are texts, shown without the blanks around them and else as they stand. Two incorrect ones may be equal.
    """
    question = text_of(pick(row, _QUESTIONS, "question"), row, "question").strip()
    task_id = id_of(row, _IDS)
    if not columns(row, _CORRECT):
        options = _shown(_listed(pick(row, _OPTIONS, "options"), row), row)
        gold = _letter(pick(row, _GOLDS, "answer"), options, row)
        return Item(task_id, question, gold, options)
    raw = [pick(row, (name,), "option") for name in (*_CORRECT, *_WRONG)]
    options = _shown(raw, row)
    if options[0] in options[1:]:
        raise UsageError(f"{row.where}: the correct answer is also an incorrect one")
    order = shuffled(len(options), shuffle_seed, task_id or question)
    shown = tuple(options[index] for index in order)
    return Item(task_id, question, LETTERS[order.index(0)], shown, order)


def _listed(value: object, row: DataRow) -> list[object]:
    if isinstance(value, dict) and sorted(value) == list(LETTERS[: len(value)]):
        value = [value[letter] for letter in LETTERS[: len(value)]]
    if not isinstance(value, list) or not 2 <= len(value) <= len(LETTERS):
        raise UsageError(f"{row.where}: the options must be a list of 2 to 26 texts, or an object with keys A, B, ...")
    return value


def _shown(values: list[object], row: DataRow) -> tuple[str, ...]:
    return tuple(text_of(value, row, "option").strip() for value in values)


def _letter(value: object, options: tuple[str, ...], row: DataRow) -> str:
    """The gold letter from a letter, an index from 0, or an option's own text; never from one that could be two."""
    letters = LETTERS[: len(options)]
    meant: set[str] = set()
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(options):
        meant.add(letters[value])
    if isinstance(value, str):
        text = value.strip()
        meant.update(letter for letter in letters if letter == text.upper())
        meant.update(letter for letter, option in zip(letters, options, strict=True) if option == text)
    if len(meant) != 1:
        problem = "no letter, index or text" if not meant else "more than one"
        raise UsageError(f"{row.where}: the answer {value!r:.60} is {problem} of its {len(options)} options")
    return meant.pop()


TASK = Task(
    name="gpqa-diamond",
    version=1,
    answer_kind="letter",
    template=Template(
        "choice/1",
        "Here is a question with its options.\n\n{{question}}\n\n{{options}}\n\n"
        "Think it through. End with a line of the form: Answer: LETTER",
    ),
    samples=8,
    published={"text": 198, "image": 0},
    read=read_choice_row,
)
