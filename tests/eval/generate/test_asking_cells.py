"""Every cell is asked once, under a seed of its own; errors are rows; a resume asks for what is missing alone."""

from __future__ import annotations

import hashlib
from collections import Counter

import pytest

from detharness.errors import UsageError
from detharness.eval.generate.runner import _wait
from detharness.eval.generate.settings import cell_seed
from detharness.targets.generation import GenerationError, Reply


def fail(kind="http_500", *, retriable=True, retry_after=None):
    raise GenerationError(kind, "it broke", retriable=retriable, retry_after=retry_after)


def cells(rows, status="ok"):
    return Counter((row["task_id"], row["sample_index"]) for row in rows if row["status"] == status)


def test_each_cell_gets_one_answer_and_the_target_is_closed(asker, target):
    outcome = asker.ask(target)
    assert outcome.progress.complete
    assert outcome.progress.done == {"text": 40}
    assert set(cells(asker.rows()).values()) == {1}
    assert len(cells(asker.rows())) == 40
    assert target.closed


def test_concurrency_is_used_and_bounded(asker, target):
    asker.ask(target, concurrency=5)
    assert target.most_running == 5


def test_neither_concurrency_nor_a_longer_file_changes_a_request(asker, target):
    asker.ask(target, concurrency=1, out=asker.folder / "one")
    asker.ask(target, concurrency=7, out=asker.folder / "seven")
    asker.ask(target, samples=3, limit=5, out=asker.folder / "other")
    requests = [
        {(row["task_id"], row["sample_index"]): row["request"] for row in asker.rows(name)}
        for name in ("one", "seven", "other")
    ]
    assert requests[0] == requests[1]
    shared = requests[0].keys() & requests[2].keys()
    assert len(shared) == 10
    assert all(requests[0][cell] == requests[2][cell] for cell in shared)
    assert asker.root("one") == asker.root("seven")


def test_seeds_are_a_hash_of_run_seed_task_and_cell_within_63_bits():
    seeds = {
        cell_seed(run_seed, task, (task_id, sample))
        for run_seed in range(3)
        for task in ("a", "b")
        for task_id in ("1", "11")
        for sample in (1, 11)
    }
    assert len(seeds) == 24
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert cell_seed(0, "a", ("1", 1)) == cell_seed(0, "a", ("1", 1))


def test_an_error_is_a_row_and_never_an_answer(asker, target):
    target.answer = lambda request: fail()
    outcome = asker.ask(target, limit=2)
    rows = asker.rows()
    assert not outcome.progress.complete
    assert outcome.progress.errors == 4
    assert all(row["output"] is None and row["error"]["kind"] == "http_500" for row in rows)
    assert sorted(row["attempt"] for row in rows) == [1] * 4 + [2] * 4 + [3] * 4
    assert outcome.failures == {"http_500": "it broke"}


def test_a_success_after_errors_ends_the_attempts(asker, target):
    tries = Counter()

    def answer(request):
        tries[request.seed] += 1
        return fail() if tries[request.seed] < 3 else target.plain(request)

    target.answer = answer
    assert asker.ask(target).progress.complete
    assert set(tries.values()) == {3}
    assert len(asker.rows()) == 120


def test_what_cannot_be_helped_is_not_tried_again(asker, target):
    target.answer = lambda request: fail("refused", retriable=False)
    asker.ask(target)
    assert len(target.requests) == 40
    assert asker.waits == []


def test_the_server_says_how_long_to_wait(asker, target):
    target.answer = lambda request: fail("http_429", retry_after=7.0)
    asker.ask(target, limit=1, samples=1)
    assert asker.waits == [(0, 7.0), (1, 7.0)]


def test_waits_double_up_to_a_cap_with_jitter():
    for attempt in range(40):
        middle = min(0.5 * 2**attempt, 30.0)
        waits = {_wait(attempt, None) for _ in range(50)}
        assert len(waits) > 1
        assert all(middle / 2 <= wait <= 1.5 * middle for wait in waits)
    assert 7.0 <= _wait(0, 7.0) <= 7.5
    assert _wait(0, 1e9) <= 300.5
    assert _wait(0, -5.0) >= 0


def test_a_reply_that_no_record_can_hold_is_an_error_of_that_cell_alone(asker, target):
    first = []

    def answer(request):
        first.append(request.seed)
        return Reply(text="\ud800") if request.seed == first[0] else target.plain(request)

    target.answer = answer
    outcome = asker.ask(target, concurrency=1)
    assert outcome.progress.done == {"text": 39}
    assert outcome.failures.keys() == {"bad_response"}


def test_a_resume_asks_for_what_is_missing_alone(asker, target):
    def answer(request):
        return fail() if len(target.requests) % 3 == 0 else target.plain(request)

    target.answer = answer
    first = asker.ask(target, retries=0)
    assert 0 < first.progress.done["text"] < 40
    target.answer = target.plain
    target.requests.clear()
    second = asker.ask(target)
    assert second.progress.complete
    assert len(target.requests) == second.asked == 40 - first.progress.done["text"]
    assert {row["attempt"] for row in asker.rows() if row["session"] == 1} == {2}
    assert set(cells(asker.rows()).values()) == {1}


def test_a_resume_of_a_whole_run_asks_nothing_and_changes_no_file(asker, target):
    asker.ask(target)
    before = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (asker.folder / "run").iterdir()}
    target.requests.clear()
    outcome = asker.ask(target)
    assert outcome.progress.complete
    assert target.requests == []
    after = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (asker.folder / "run").iterdir()}
    assert after == before


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"temperature": 0.5}, "sampling.temperature"),
        ({"seed": 1}, "seed"),
        ({"max_tokens": 9}, "sampling.max_tokens"),
        ({"samples": 3}, "samples"),
        ({"stop": ("x",)}, "sampling.stop"),
        ({"limit": 3}, "data.rows_digest"),
        ({"model": "m"}, "target_argument.model"),
    ],
)
def test_a_resume_with_a_changed_request_is_refused_and_names_the_field(asker, target, changed, named):
    asker.ask(target)
    before = (asker.folder / "run" / "generations.jsonl").read_bytes()
    with pytest.raises(UsageError, match=named.replace(".", r"\.")):
        asker.ask(target, **changed)
    assert (asker.folder / "run" / "generations.jsonl").read_bytes() == before


def test_a_resume_with_another_target_is_refused(asker, target):
    asker.ask(target)
    target.name = "another"
    with pytest.raises(UsageError, match=r"target\.name"):
        asker.ask(target)


def test_a_resume_with_another_concurrency_is_the_same_run(asker, target):
    target.answer = lambda request: fail()
    asker.ask(target, concurrency=2, retries=0)
    target.answer = target.plain
    assert asker.ask(target, concurrency=9, retries=5).progress.complete


def test_progress_counts_by_modality_down_to_nothing_left(asker, target):
    asker.ask(target, limit=3)
    assert [report.left for report in asker.reports] == [5, 4, 3, 2, 1, 0]
    assert asker.reports[-1].tokens == 18
    assert asker.reports[-1].expected == {"text": 6}
