"""Rows of our own writing under the columns that the published files have, with their oddities."""

import base64
import json

import pytest

_OPTIONS = ("Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")
_VERSIONED = ("Question", *_OPTIONS, "Explanation")
_VALIDATORS = {"EV_1": 12, "EV_2": 12, "NEV_1": 8, "NEV_2": 8, "NEV_3": 8}
_VALIDATED = (
    *("Feedback", "Validator Revision Suggestion", "Is First Validation", "Post hoc agreement"),
    *("Sufficient Expertise?", "Understand the question?", "Question Difficulty", "Validator Answered Correctly"),
    *("Self-reported time (minutes)", "Probability Correct", "Manual Correctness Adjustment", "Expert Validator"),
)


def _choice_row(number=0, **changed):
    """A GPQA row: 78 columns, most of them empty."""
    row = {
        **{f"Pre-Revision {name}": f"earlier {name}" for name in _VERSIONED},
        "Self-reported question-writing time (minutes)": 90.0,
        "Question": f"Which of these holds in case {number}?",
        "Correct Answer": f"right {number}",
        **{f"Incorrect Answer {wrong}": f"wrong {wrong} of {number}" for wrong in (1, 2, 3)},
        "Explanation": "Because it does.",
        "Revision Comments (from Question Writer)": None,
        "Subdomain": "Organic Chemistry",
        "Writer's Difficulty Estimate": "Hard graduate level (could be solved by a few)",
        **{f"Extra Revised {name}": None for name in _VERSIONED},
        "Non-Expert Validator Accuracy": 1 / 3,
        "Majority Non-Expert Vals Incorrect": 1,
        "Expert Validator Accuracy": 1,
        "Record ID": f"rec{number:014d}",
        "High-level domain": ("Chemistry", "Physics", "Biology")[number % 3],
        "Question Writer": "A. N. Other",
        **{f"{name}_{who}": None for who, count in _VALIDATORS.items() for name in _VALIDATED[:count]},
        "Expert Validator Disagreement Category": None,
        "Canary String": "not for training",
    }
    assert len(row) == 78
    return {**row, **changed}


def _exam_row(number=0, *, with_image=False, **changed):
    """An HLE row as people export it: without the two columns of decoded images, which to_json cannot write."""
    picture = base64.b64encode(f"picture {number}".encode()).decode()
    row = {
        "id": f"{number:024x}",
        "question": f"What is {number}?",
        "image": f"data:image/png;base64,{picture}" if with_image else "",
        "answer": str(number),
        "answer_type": "exactMatch",
        "author_name": "A. N. Other",
        "rationale": "It is.",
        "raw_subject": "Mathematics",
        "category": "Math",
        "canary": "not for training",
    }
    return {**row, **changed}


@pytest.fixture
def choice_row():
    return _choice_row


@pytest.fixture
def exam_row():
    return _exam_row


@pytest.fixture
def lines(tmp_path):
    """Writes rows as JSONL and returns the path."""

    def write(*rows):
        path = tmp_path / "data.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    return write
