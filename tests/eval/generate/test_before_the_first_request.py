"""What is refused, and what is said, before anything is asked; and whether the seed reaches the target."""

from __future__ import annotations

import asyncio
import base64
import json

import pytest

from detharness.errors import UsageError
from detharness.eval.generate.seed_proof import prove_seed
from detharness.targets.generation import GenerationRequest, Reply

from .conftest import ScriptedTarget

PNG = "data:image/png;base64," + base64.b64encode(b"\x89PNG not really").decode()


def exam(folder, images):
    rows = [
        {"id": f"q{n}", "question": f"What is {n}?", "answer": "x", "answer_type": "exactMatch", "image": image}
        for n, image in enumerate(images)
    ]
    path = folder / "hle.json"
    path.write_text(json.dumps(rows))
    return path


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"samples": 0}, "--samples"),
        ({"concurrency": 0}, "--concurrency"),
        ({"max_tokens": 0}, "--max-tokens"),
        ({"temperature": -0.1}, "--temperature"),
        ({"temperature": float("nan")}, "--temperature"),
        ({"top_p": 0.0}, "--top-p"),
        ({"min_p": 1.5}, "--min-p"),
        ({"top_k": -1}, "--top-k"),
        ({"seed": -1}, "--seed"),
        ({"limit": 0}, "--limit"),
        ({"retries": -1}, "--retries"),
        ({"stop": ("",)}, "--stop"),
        ({"task": "aime2027"}, "unknown task 'aime2027'"),
        ({"task": "aime2026"}, "--data"),
    ],
)
def test_an_option_out_of_its_range_is_named_and_nothing_is_opened(asker, options, named):
    from detharness.eval.generate.settings import prepare

    with pytest.raises(UsageError, match=named):
        prepare(asker.settings(**options), lambda: pytest.fail("the target was opened"))


@pytest.mark.parametrize("room", [1, 50])
def test_a_prompt_that_would_be_cut_is_refused_with_what_would_fit(asker, room):
    target = ScriptedTarget(context_length=10_000)
    longest = max(target.count_prompt_tokens(row.messages) for row in asker.plan(target, out=None).loaded.rows)
    target.context_length = longest + room
    with pytest.raises(UsageError, match=f"lower --max-tokens to at most {room}$"):
        asker.ask(target, max_tokens=room + 1)
    assert target.requests == []
    assert not (asker.folder / "run").exists()
    assert asker.ask(target, max_tokens=room).progress.complete


def test_a_prompt_beyond_the_context_has_no_remedy_but_its_row(asker):
    with pytest.raises(UsageError, match="leave that task out"):
        asker.ask(ScriptedTarget(context_length=20), max_tokens=1)
    with pytest.raises(UsageError, match="leaves no room for a prompt"):
        asker.ask(ScriptedTarget(context_length=20), max_tokens=20)


def test_a_target_without_eyes_leaves_image_cells_owed(asker, tmp_path):
    data = exam(tmp_path, ["", PNG, ""])
    target = ScriptedTarget(images=False)
    assert asker.plan(target, task="hle", data=data, samples=1).owed == 1
    outcome = asker.ask(target, task="hle", data=data, samples=1)
    assert len(target.requests) == 2
    assert outcome.progress.done == {"text": 2, "image": 0}
    assert not outcome.progress.complete
    assert {row["modality"] for row in asker.rows()} == {"text"}


def test_an_image_goes_as_the_data_uri_it_is_and_only_its_digest_is_kept(asker, tmp_path):
    target = ScriptedTarget()
    target.count_prompt_tokens = lambda messages: 1
    asker.ask(target, task="hle", data=exam(tmp_path, [PNG]), samples=1)
    (request,) = target.requests
    text, image = request.messages[0]["content"]
    assert text["type"] == "text"
    assert image == {"type": "image_url", "image_url": {"url": PNG}}
    for path in (asker.folder / "run").iterdir():
        assert PNG.encode() not in path.read_bytes()


REQUEST = GenerationRequest(messages=[{"role": "user", "content": "hello"}], max_tokens=100, temperature=0.7, seed=9)


def proof(answers, temperature=0.7):
    target = ScriptedTarget()
    replies = iter(answers)
    target.answer = lambda request: Reply(text=next(replies))
    request = GenerationRequest(messages=REQUEST.messages, max_tokens=100, temperature=temperature, seed=9)
    return asyncio.run(prove_seed(target, request)), target.requests


@pytest.mark.parametrize(
    ("answers", "verdict", "asked"),
    [
        ("aab", "reaches", 3),
        ("aaaab", "reaches", 5),
        ("ab", "ignored", 2),
        ("aaaaaa", "undecided", 6),
    ],
)
def test_a_seeded_pair_and_unseeded_controls_prove_that_the_seed_arrives(answers, verdict, asked):
    found, requests = proof(answers)
    assert found.verdict == verdict
    assert [request.seed for request in requests] == [9, 9, None, None, None, None][:asked]
    assert len(found.pair) + len(found.controls) == asked


def test_greedy_uses_no_seed_and_asks_nothing():
    found, requests = proof("", temperature=0.0)
    assert found.verdict == "not_tested"
    assert requests == []


def test_the_proof_is_recorded_once_a_session(asker, target):
    target.answer = lambda request: Reply(text=str(request.seed), completion_tokens=1)
    asker.ask(target, temperature=0.8)
    (session,) = [json.loads(line) for line in (asker.folder / "run" / "sessions.jsonl").read_bytes().splitlines()]
    assert session["seed_proof"]["verdict"] == "reaches"
    assert session["concurrency"] == 8
    assert session["owed"] == 40
    assert len(target.requests) == 43
