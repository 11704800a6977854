"""The target of a run opened again: by what name, refused when it is another, and with the requests of the records."""

import asyncio
import base64
import dataclasses
import json
from contextlib import nullcontext

import pytest

from detharness.errors import UsageError
from detharness.eval.records import TaskRow
from detharness.eval.runs import Ledger, open_run
from detharness.eval.tasks.images import image_part
from detharness.eval.verify.reopening import Again, ask_again
from detharness.records.digests import sha256_value
from detharness.targets.generation import GenerationError, Reply

ARGUMENT = {"target": "engine:here", "model": None, "kernels": "invariant", "dtype": "fp32"}
DESCRIBED = {"form": "engine", "weights_digest": "w" * 64, "dtype": "fp32"}
SAMPLING = {"max_tokens": 64, "temperature": 0.8, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "stop": ["END"]}


class Echo:
    """Answers with the request's seed; ``described`` is what it says it is."""

    accepts_images = True
    context_length = None

    def __init__(self, described=DESCRIBED):
        self.described = described
        self.requests = []
        self.closed = False

    def describe(self):
        return self.described

    async def generate(self, request):
        self.requests.append(request)
        await asyncio.sleep(0)
        if request.seed == 13:
            raise GenerationError("timeout", "no reply in 5 s", retriable=True)
        return Reply(text=f"seed {request.seed}", finish_reason="stop")

    async def close(self):
        self.closed = True


def answer(runs, row, sample=0, **request):
    made = runs.answer(row, sample)
    seed = request.setdefault("seed", 100 + sample)
    request = {**made.request, "sampling": SAMPLING, "target_digest": sha256_value(DESCRIBED), **request}
    output = runs.output(f"seed {seed}", prompt_tokens=None, completion_tokens=None)
    return dataclasses.replace(made, request=request, output=output)


def ledger_of(runs, rows, answers, **manifest):
    told = {"target": DESCRIBED, "target_argument": ARGUMENT, **manifest}
    ledger = Ledger(open_run(runs.write(rows, answers, samples=8, **told)))
    for attempt in ledger.run.attempts([]):
        ledger.take(attempt)
    return ledger


def ask(ledger, target=None, *, target_name=None, **again):
    opened = []

    def open_target(*named):
        opened.append(named)
        return target or Echo()

    asked = Again(**{"count": 8, "target": target_name, **again})
    return ask_again(ledger, asked, open_target, lambda total: nullcontext(lambda note: None)), opened


def test_the_recorded_requests_go_to_the_recorded_target(runs):
    row = runs.row()
    target = Echo()
    ledger = ledger_of(runs, [row], [answer(runs, row, sample) for sample in range(4)])
    results, opened = ask(ledger, target)
    assert opened == [("engine:here", None, "invariant", "fp32")]
    assert [(result.cell[1], result.outcome) for result in results] == [(n, "identical") for n in range(4)]
    assert sorted(request.seed for request in target.requests) == [100, 101, 102, 103]
    for it in target.requests:
        assert (it.max_tokens, it.temperature, it.top_p, it.top_k, it.min_p, it.stop) == (
            64,
            0.8,
            0.9,
            5,
            0.1,
            ("END",),
        )
        assert it.messages == [{"role": "user", "content": "How many?"}]
    assert target.closed


def test_only_the_drawn_cells_are_asked(runs):
    row = runs.row()
    ledger = ledger_of(runs, [row], [answer(runs, row, sample) for sample in range(8)])
    drawn = [[result.cell for result in ask(ledger, count=3, seed=seed)[0]] for seed in (0, 0, 1)]
    assert len(drawn[0]) == 3
    assert drawn[0] == drawn[1] != drawn[2]


def test_another_reply_and_no_reply_are_told_apart(runs):
    row = runs.row()
    moved = answer(runs, row, 0)
    moved = dataclasses.replace(moved, output=dataclasses.replace(moved.output, text="seed 99"))
    ledger = ledger_of(runs, [row], [moved, answer(runs, row, 1, seed=13)])
    results, _ = ask(ledger)
    assert [result.outcome for result in results] == ["moved", "failed"]
    assert results[0].difference.text == ("seed 99", "seed 100")


def test_a_model_that_was_moved_is_found_by_its_new_name(runs):
    row = runs.row()
    _, opened = ask(ledger_of(runs, [row], [answer(runs, row)]), target_name="engine:there")
    assert opened == [("engine:there", None, "invariant", "fp32")]


def test_another_target_is_refused_by_what_differs_before_it_is_asked(runs):
    row = runs.row()
    target = Echo({**DESCRIBED, "dtype": "bf16", "pages": 3})
    with pytest.raises(UsageError, match=r"not the one that answered \(dtype, pages differ from the manifest\)"):
        ask(ledger_of(runs, [row], [answer(runs, row)]), target)
    assert target.closed
    assert not target.requests


def test_records_of_another_target_than_the_manifest_names_are_refused(runs):
    row = runs.row()
    with pytest.raises(UsageError, match="the records name another"):
        ask(ledger_of(runs, [row], [answer(runs, row, target_digest="e" * 64)]))


@pytest.mark.parametrize("argument", [None, {}, {**ARGUMENT, "kernels": None}, {**ARGUMENT, "model": 5}, "engine:here"])
def test_a_manifest_that_names_no_target_is_refused(runs, argument):
    row = runs.row()
    with pytest.raises(UsageError, match="does not say how its target was opened"):
        ask(ledger_of(runs, [row], [answer(runs, row)], target_argument=argument))


@pytest.mark.parametrize("sampling", [None, {}, {**SAMPLING, "stop": None}])
def test_a_request_that_cannot_be_sent_again_is_refused_by_its_line(runs, sampling):
    row = runs.row()
    with pytest.raises(UsageError, match=r"generations\.jsonl, line 1: the request is not one of eval generate"):
        ask(ledger_of(runs, [row], [answer(runs, row, sampling=sampling)]))


def test_a_run_without_an_answer_opens_nothing(runs):
    row = runs.row()
    assert ask(ledger_of(runs, [row], [runs.failure(row)])) == ([], [])


@pytest.mark.parametrize("again", [{"count": 0}, {"concurrency": 0}])
def test_none_at_all_is_no_number_to_ask(runs, again):
    row = runs.row()
    with pytest.raises(UsageError, match="must be at least 1"):
        ask(ledger_of(runs, [row], [answer(runs, row)]), **again)


IMAGE = "data:image/png;base64," + base64.b64encode(b"pixels").decode()


def hle_data(folder, image):
    path = folder / "hle.jsonl"
    row = {"id": "h0", "question": "What is it?", "answer": "42", "answer_type": "exactMatch", "image": image}
    path.write_text(json.dumps({**row, "category": "Math", "raw_subject": "Math"}) + "\n")
    return path


def test_an_image_is_sent_from_the_data_file_and_only_the_same_one(runs, tmp_path):
    content = [{"type": "text", "text": "What is it?"}, image_part(IMAGE, "here")]
    row = runs.row("h0", "42", modality="image")
    row = TaskRow(**{**vars(row), "messages": ({"role": "user", "content": content},)})
    made = dataclasses.replace(answer(runs, row), task="hle")
    ledger = ledger_of(runs, [row], [made], task="hle")
    target = Echo()
    results, _ = ask(ledger, target, data=hle_data(tmp_path, IMAGE))
    assert [result.outcome for result in results] == ["identical"]
    assert target.requests[0].messages[0]["content"][1] == {"type": "image_url", "image_url": {"url": IMAGE}}
    with pytest.raises(UsageError, match="name the data file with --data"):
        ask(ledger)
    with pytest.raises(UsageError, match="not the one in the run"):
        ask(ledger, data=hle_data(tmp_path, IMAGE.replace("cGl4", "cGlY")))
