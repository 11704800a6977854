"""Reading a run: what counts as a record, and which record stands for a cell."""

import json
import shutil

import pytest

from detharness.errors import UsageError
from detharness.eval.runs import Ledger, open_run


def ledger_of(folder):
    run = open_run(folder)
    ledger, damages, first = Ledger(run), [], []
    for attempt in run.attempts(damages):
        if ledger.take(attempt):
            first.append(attempt)
    return ledger, damages, first


def test_rows_come_back_as_they_were_written(runs):
    row = runs.row(options=("a", "b"), extra={"answer_type": "exactMatch"})
    answer = runs.answer(row, token_ids=(5, 6), text="\u2028 \\boxed{33}")
    run = open_run(runs.write([row], [answer, runs.failure(row)]))
    attempts = list(run.attempts([]))
    assert run.tasks == (row,)
    assert [attempt.generation for attempt in attempts] == [answer, runs.failure(row)]
    assert [attempt.altered for attempt in attempts] == [(), ()]
    assert [run.read(attempt.place) for attempt in attempts] == [answer, runs.failure(row)]


def test_a_success_after_an_error_counts_and_both_attempts_are_kept(runs):
    row = runs.row()
    ledger, _, first = ledger_of(runs.write([row], [runs.failure(row), runs.answer(row, attempt=1)]))
    assert [attempt.generation.attempt for attempt in first] == [1]
    assert ledger.attempts(("t0", 0)) == 2


def test_the_same_record_twice_is_one_answer_and_a_note(runs):
    row = runs.row()
    ledger, _, first = ledger_of(runs.write([row], [runs.answer(row), runs.answer(row)]))
    assert (len(first), ledger.duplicates, ledger.attempts(("t0", 0))) == (1, 1, 1)
    ledger.refuse_conflicts()


@pytest.mark.parametrize("change", [{"text": "another"}, {"seed": 5}, {"completion_tokens": 8}])
def test_two_different_answers_to_a_cell_are_refused_by_their_lines(runs, change):
    row = runs.row()
    ledger, _, _ = ledger_of(runs.write([row], [runs.answer(row), runs.failure(row), runs.answer(row, **change)]))
    with pytest.raises(UsageError, match=r"line 1 and generations\.jsonl, line 3 .*'t0', sample 0"):
        ledger.refuse_conflicts()


def test_shards_beside_a_merged_file_count_once(runs):
    row = runs.row()
    folder = runs.write([row], [runs.answer(row, 0), runs.answer(row, 1), runs.failure(row, 0)], samples=2)
    plain, _, _ = ledger_of(folder)
    for shard in "ab":
        shutil.copy(folder / "generations.jsonl", folder / f"generations-{shard}.jsonl")
    merged, _, first = ledger_of(folder)
    assert len(first) == 2
    assert merged.root == plain.root
    assert merged.duplicates == 6
    assert merged.attempts(("t0", 0)) == plain.attempts(("t0", 0)) == 2


def test_a_torn_last_line_leaves_its_cell_unanswered(runs):
    row = runs.row()
    torn = runs.line(runs.answer(row, 1))[:-30]
    ledger, damages, _ = ledger_of(runs.write([row], [runs.answer(row, 0), torn], samples=2))
    assert set(ledger.answers) == {("t0", 0)}
    assert [(damage.kind, damage.place.line) for damage in damages] == [("torn", 2)]


def test_two_records_joined_on_a_line_are_both_recovered(runs):
    row = runs.row()
    text = 'quotes {"attempt": 1} and {"schema": 2} in a reply'
    joined = runs.line(runs.answer(row, 0, text=text))[:-1] + runs.line(runs.answer(row, 1))
    folder = runs.write([row], [joined], samples=2)
    ledger, damages, first = ledger_of(folder)
    assert set(ledger.answers) == {("t0", 0), ("t0", 1)}
    assert [(damage.kind, damage.place.line) for damage in damages] == [("joined", 1)]
    run = open_run(folder)
    assert [run.read(answer.place).output.text for answer in ledger.answers.values()] == [
        attempt.generation.output.text for attempt in first
    ]


def test_a_record_joined_to_a_torn_one_is_recovered(runs):
    row = runs.row()
    line = runs.line(runs.answer(row, 0))[:-40] + runs.line(runs.answer(row, 1))
    ledger, damages, _ = ledger_of(runs.write([row], [line, runs.answer(row, 2)], samples=3))
    assert set(ledger.answers) == {("t0", 1), ("t0", 2)}
    assert [damage.kind for damage in damages] == ["torn"]


def test_what_the_run_did_not_ask_for_is_extra(runs):
    row, stranger = runs.row(), runs.row("nobody")
    ledger, _, _ = ledger_of(runs.write([row], [runs.answer(row), runs.answer(row, 1), runs.answer(stranger)]))
    assert ledger.extra == {("t0", 1), ("nobody", 0)}
    assert set(ledger.answers) == {("t0", 0)}


def test_an_edited_answer_and_an_edited_data_row_are_no_answers(runs):
    row = runs.row()
    edited = runs.line(runs.answer(row, 0)).replace(b"boxed{33}", b"boxed{34}")
    old = runs.answer(runs.row(gold="34"), 1)
    ledger, _, _ = ledger_of(runs.write([row], [edited, old], samples=2))
    assert not ledger.answers
    assert [place.line for place in ledger.altered] == [1]
    assert [place.line for place in ledger.outdated] == [2]


def test_an_answer_to_other_messages_is_none(runs):
    row = runs.row()
    other = runs.answer(runs.row(question="How few?"))
    ledger, _, _ = ledger_of(runs.write([row], [other]))
    assert not ledger.answers
    assert [place.line for place in ledger.outdated] == [1]


def test_the_root_knows_no_order(runs):
    row = runs.row()
    answers = [runs.answer(row, sample, text=f"reply {sample}") for sample in range(3)]
    forth, _, _ = ledger_of(runs.write([row], answers, samples=3, name="forth"))
    back, _, _ = ledger_of(runs.write([row], answers[::-1], samples=3, name="back"))
    moved, _, _ = ledger_of(runs.write([row], [*answers[:2], runs.answer(row, 2)], samples=3, name="moved"))
    assert forth.root == back.root != moved.root


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"schema": "other/1"}, "line 1: the field 'schema'"),
        ({"sample_index": -1}, "line 1: the field 'sample_index' must be a whole number"),
        ({"sample_index": True}, "line 1: the field 'sample_index' must be a whole number"),
        ({"status": "error"}, "line 1: a row has an output when its status is ok"),
        ({"task": "hle"}, "line 1: a record of the task 'hle' in a run of 'aime2026'"),
        ({"seconds": None}, "line 1: the field 'seconds' must be a number"),
    ],
)
def test_a_row_that_is_no_record_is_refused_by_its_line(runs, change, sentence):
    row = runs.row()
    data = json.dumps({**runs.answer(row).as_row(), **change}).encode() + b"\n"
    with pytest.raises(UsageError, match=sentence):
        ledger_of(runs.write([row], [data]))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"token_ids": [1.5]}, "the field 'output.token_ids' must be"),
        ({"token_ids": [True]}, "the field 'output.token_ids' must be"),
        ({"text": 5}, "the field 'output.text' must be"),
    ],
)
def test_an_output_of_another_shape_is_refused(runs, change, sentence):
    row = runs.row()
    data = runs.answer(row).as_row()
    data["output"].update(change)
    with pytest.raises(UsageError, match=sentence):
        ledger_of(runs.write([row], [json.dumps(data).encode()]))


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "problem"), [(2**80, "does not fit 64 bits"), (nested(300), "nested too deeply")], ids=["large", "deep"]
)
def test_what_has_no_canonical_form_is_refused_by_its_line(runs, value, problem):
    row = runs.row()
    answer, failure = runs.answer(row).as_row(), runs.failure(row).as_row()
    answer["request"]["seed"] = failure["error"]["detail"] = value
    for name, data in (("answer", answer), ("failure", failure)):
        with pytest.raises(UsageError, match=rf"line 1: .*{problem}"):
            ledger_of(runs.write([row], [json.dumps(data).encode()], name=name))
    folder = runs.write([row], [], name="task")
    task = json.loads((folder / "tasks.jsonl").read_bytes())
    task["messages"][0]["content"] = value
    (folder / "tasks.jsonl").write_text(json.dumps(task))
    with pytest.raises(UsageError, match=rf"tasks\.jsonl, line 1: .*{problem}"):
        open_run(folder)


@pytest.mark.parametrize("batch", [[], {}, {"min": 1, "max": 2, "mean": None}, {"min": "1", "max": 2, "mean": 1.5}])
def test_a_batch_without_its_rows_is_refused(runs, batch):
    row = runs.row()
    data = json.dumps({**runs.answer(row).as_row(), "batch": batch}).encode()
    with pytest.raises(UsageError, match="line 1: the field 'batch' must be"):
        ledger_of(runs.write([row], [data]))


def test_a_folder_that_is_no_run_is_refused(runs, tmp_path):
    with pytest.raises(UsageError, match=r"holds no manifest\.json"):
        open_run(tmp_path)
    with pytest.raises(UsageError, match="'samples' at least 1"):
        open_run(runs.write([runs.row()], [], samples=0, name="a"))
    with pytest.raises(UsageError, match="holds no task"):
        open_run(runs.write([], [], name="b"))
    with pytest.raises(UsageError, match="row 2: the task id 't0' stands there twice"):
        open_run(runs.write([runs.row(), runs.row()], [], name="c"))
    deep = runs.write([runs.row()], [], name="d")
    (deep / "manifest.json").write_text("[" * 1_010 + "]" * 1_010)
    with pytest.raises(UsageError, match=r"manifest\.json: nested too deeply"):
        open_run(deep)
