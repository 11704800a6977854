"""A real server, written by others for the same API, is asked as the engine is and gives the engine's replies."""

import asyncio

import pytest

from detharness.targets.endpoint.openai_endpoint import OpenAIEndpoint
from detharness.targets.engine import EngineTarget
from detharness.targets.engine_generation import EngineGeneration
from detharness.targets.generation import GenerationError, GenerationRequest, Reply

PROMPTS = ("What is 2+3?", "Tell me a long story.")


def ask(content=PROMPTS[0], max_tokens=10, **fields):
    return GenerationRequest(messages=[{"role": "user", "content": content}], max_tokens=max_tokens, **fields)


def in_turn(open_target, *requests):
    """The replies to ``requests``, one after the other: this server's seed is global, so neighbours would share it."""

    async def go():
        target = open_target()
        try:
            return [await target.generate(request) for request in requests]
        finally:
            await target.close()

    return asyncio.run(go())


@pytest.fixture
def endpoint(transformers_serve):
    return lambda: OpenAIEndpoint(transformers_serve.url, transformers_serve.model, details=True)


def test_greedy_replies_are_those_of_the_engine(endpoint):
    requests = [ask(prompt) for prompt in PROMPTS]
    engine = in_turn(lambda: EngineGeneration(EngineTarget("smollm2-135m", "invariant", "fp32")), *requests)
    told = [
        Reply(
            text=reply.text,
            finish_reason=reply.finish_reason,
            prompt_tokens=reply.prompt_tokens,
            completion_tokens=reply.completion_tokens,
        )
        for reply in engine
    ]
    assert in_turn(endpoint, *requests) == told
    assert {reply.finish_reason for reply in told} == {"stop", "length"}


def test_the_seed_reaches_it(endpoint):
    one, two, again = in_turn(endpoint, *(ask(temperature=0.9, seed=seed) for seed in (2**63 - 1, 7, 2**63 - 1)))
    assert one == again
    assert one.text != two.text


def test_it_is_described_by_what_it_tells(endpoint, transformers_serve):
    assert endpoint().describe() == {
        "form": "openai",
        "url": transformers_serve.url,
        "model": transformers_serve.model,
        "server": "local",
        "context_length": None,
        "asks_for": [],
    }


def test_what_it_refuses_is_an_error_that_stays(endpoint, transformers_serve):
    with pytest.raises(GenerationError) as refused:
        in_turn(endpoint, ask(top_k=5))  # A field it does not know; dropped in silence, it would change the answer.
    assert (refused.value.kind, refused.value.retriable) == ("refused", False)
    assert "top_k" in str(refused.value)
