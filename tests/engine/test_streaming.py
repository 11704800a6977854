"""Streaming callbacks: called when a step is whole, so whatever they do or raise moves no other request."""

from __future__ import annotations

import contextlib

import pytest

from detharness.engine.loop import Engine
from detharness.engine.params import EngineConfig, SamplingParams
from detharness.engine.sequence import Request

PROMPT = (1, 2, 3)


@pytest.fixture
def target(tiny_target):
    return tiny_target("llama", "invariant", "fp32")


def engine_for(target) -> Engine:
    return Engine(
        target.decoder,
        target.checkpoint.tokenizer,
        target.checkpoint.eos_token_ids,
        EngineConfig(num_blocks=4, page_size=16),
    )


def greedy(**more) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 8, "ignore_eos": True, **more})


def finish(engine: Engine) -> dict:
    """Step to the end, whatever the callbacks raise."""
    done = {}
    for _ in range(100):
        if not engine.busy:
            break
        with contextlib.suppress(CallbackError):
            engine.step()
        done |= {(d.request_id, d.sample_index): d for d in engine.take_finished()}
    assert not engine.busy
    engine.add(Request("whole pool", (5,) * 20, greedy(max_tokens=45)))
    while engine.busy:
        engine.step()
    assert [d.finish_reason for d in engine.take_finished()] == ["length"], "pages were lost"
    return done


@pytest.fixture
def alone(target) -> tuple[int, ...]:
    engine = engine_for(target)
    engine.add(Request("alone", PROMPT, greedy()))
    return finish(engine)["alone", 0].token_ids


def on_call(number: int, act):
    """A callback that does something at its ``number``-th call only."""
    calls = 0

    def listen(event) -> None:
        nonlocal calls
        calls += 1
        if calls == number:
            act()

    return listen


class CallbackError(Exception):
    """What a callback of these tests raises."""


def fail() -> None:
    raise CallbackError


def test_a_callback_that_raises_costs_no_token(target, alone):
    engine = engine_for(target)
    engine.add(Request("raises", PROMPT, greedy(), on_token=on_call(2, fail)))
    engine.add(Request("neighbour", PROMPT, greedy()))
    done = finish(engine)
    assert {name: d.token_ids for (name, _), d in done.items()} == {"raises": alone, "neighbour": alone}


def test_every_callback_of_a_step_is_called_and_every_failure_comes_out(target):
    engine = engine_for(target)
    seen = []
    for name in "ab":
        engine.add(Request(name, PROMPT, greedy(), on_token=on_call(1, fail)))
    engine.add(Request("c", PROMPT, greedy(), on_token=seen.append))
    with pytest.raises(ExceptionGroup) as caught:
        engine.step()
    assert len(caught.value.exceptions) == 2
    assert [event.request_id for event in seen] == ["c"]


def test_a_callback_may_abort_its_own_request_with_samples_in_the_same_step(target):
    engine = engine_for(target)
    sampled = greedy(n=2, temperature=1.0, seq_seed=1)
    engine.add(Request("n", PROMPT, sampled, on_token=on_call(3, lambda: engine.abort("n"))))
    done = finish(engine)
    assert [(d.finish_reason, len(d.token_ids)) for d in done.values()] == [("aborted", 2)] * 2


def test_a_callback_may_abort_another_request_in_the_step_in_which_that_one_ends(target, alone):
    engine = engine_for(target)
    aborted = []
    engine.add(Request("first", PROMPT, greedy(), on_token=on_call(3, lambda: aborted.append(engine.abort("second")))))
    engine.add(Request("second", PROMPT, greedy(max_tokens=3)))
    done = finish(engine)
    assert aborted == [False], "it had ended"
    assert (done["second", 0].finish_reason, done["second", 0].token_ids) == ("length", alone[:3])
    assert done["first", 0].token_ids == alone


def test_a_callback_may_add_a_request_under_the_id_that_just_ended(target, alone):
    engine = engine_for(target)
    again = Request("id", PROMPT, greedy())
    engine.add(Request("id", PROMPT, greedy(max_tokens=2), on_token=on_call(2, lambda: engine.add(again))))
    assert finish(engine)["id", 0].token_ids == alone


def test_a_step_whose_arithmetic_fails_can_be_taken_again(target, alone, monkeypatch):
    engine = engine_for(target)
    engine.add(Request("r", PROMPT, greedy(logprobs=0)))
    engine.step()
    with monkeypatch.context() as patch:
        patch.setattr("detharness.engine.loop.draw", lambda *_: fail())
        with pytest.raises(CallbackError):
            engine.step()
    completion = finish(engine)["r", 0]
    assert completion.token_ids == alone
    assert len(completion.logprobs) == 8
