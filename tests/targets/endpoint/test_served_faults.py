"""Whatever a server does, streamed or whole: a faithful reply, or a GenerationError with a plain sentence."""

import asyncio
import time

import pytest
from misbehaving_server import BEHAVIOURS

from detharness.targets.endpoint.http_client import Limits
from detharness.targets.endpoint.served import ServedEndpoint
from detharness.targets.generation import GenerationError
from detharness.targets.serving import ServedReply, ServedRequest

SHORT = Limits(connect=5.0, stall=0.3, total=5.0, body=2**22)


def ask(server, name, *, stream=True, limits=SHORT, **fields):
    """The reply, or the GenerationError itself."""

    async def once():
        endpoint = ServedEndpoint(server.url, name, limits=limits)
        messages = [{"role": "user", "content": "What is 30 + 3?"}]
        try:
            return await endpoint.ask(ServedRequest(messages=messages, max_tokens=16, stream=stream, **fields))
        except GenerationError as error:
            return error
        finally:
            await endpoint.close()

    return asyncio.run(once())


@pytest.mark.parametrize(
    ("name", "text", "finish_reason", "chunks"),
    [
        ("stream-good", "The sum is 33.", "stop", 2),
        ("stream-no-done", "33", "stop", 1),
        ("stream-no-finish", "33", None, 1),
        ("stream-null-delta", "33", "stop", 1),
        ("stream-stays", "33", "stop", 1),
        ("good", "The sum is \\boxed{33}.", "stop", None),  # In one piece, though a stream was asked for.
    ],
)
def test_a_stream_that_ends_is_a_reply(misbehaving_server, name, text, finish_reason, chunks):
    reply = ask(misbehaving_server, name)
    assert isinstance(reply, ServedReply), reply
    assert (reply.text, reply.finish_reason, reply.chunks) == (text, finish_reason, chunks)


def test_a_server_that_stays_after_its_last_event_costs_no_time_of_the_reply(misbehaving_server):
    reply = ask(misbehaving_server, "stream-stays")
    assert reply.seconds < 0.9  # The wait for its end, of one second, is not counted.


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("stream-half", "the stream ended before the reply did: no finish_reason and no [DONE]"),
        ("stream-half-closed", "the stream ended before the reply did: no finish_reason and no [DONE]"),
        ("stream-half-event", "the reply is not whole JSON"),
        ("stream-empty", "the stream ended before the reply did: no finish_reason and no [DONE]"),
        ("stream-html", "the stream ended before the reply did: no finish_reason and no [DONE]"),
        ("stream-html-as-html", "the reply is not whole JSON"),
        ("stream-error", "the server answered with an error: out of memory"),
        ("stream-error-event", "the server answered with an error: out of memory"),
        ("stream-error-field", "the server answered with an error: out of memory"),
        ("stream-error-object", "the server answered with an error: out of memory"),
        ("stream-aborted", "the server broke the reply off (finish_reason 'abort')"),
        ("stream-invalid-utf8", "the reply is not whole JSON"),
        ("stream-two-choices", "the reply has 2 choices, and one was asked for"),
        ("stream-number", "the reply's content is neither a text nor null"),
        ("stream-no-json", "the reply is not a completion: it has no list of choices"),
    ],
)
def test_a_stream_that_is_no_reply_is_an_error_that_says_why(misbehaving_server, name, sentence):
    error = ask(misbehaving_server, name)
    assert isinstance(error, GenerationError)
    assert (error.kind, str(error)) == ("bad_response", sentence)


@pytest.mark.parametrize(
    ("name", "kind", "sentence"),
    [
        ("stream-stalls", "timeout", "the reply stopped in its middle for 0.3 seconds"),
        ("stream-endless", "too_large", "the reply is larger than 4194304 bytes"),
        ("stream-endless-line", "too_large", "the reply is larger than 4194304 bytes"),
        ("stream-cut-in-a-chunk", "connection", None),
    ],
)
def test_a_stream_ends_in_bounded_time_and_memory(misbehaving_server, name, kind, sentence):
    error = ask(misbehaving_server, name)
    assert isinstance(error, GenerationError)
    assert error.kind == kind
    assert sentence in (None, str(error))


def test_a_request_ends_at_its_deadline_while_events_come(misbehaving_server):
    error = ask(misbehaving_server, "stream-endless", limits=Limits(total=0.3, body=2**40))
    assert (error.kind, str(error)) == ("timeout", "no whole reply came within 0.3 seconds")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", sorted(set(BEHAVIOURS) - {"silent", "drips"}))
def test_nothing_else_ever_comes_out(misbehaving_server, name, stream):
    end = ask(misbehaving_server, name, stream=stream, logprobs=2, token_ids_back=True)
    assert isinstance(end, ServedReply | GenerationError)
    if isinstance(end, GenerationError):
        assert str(end).isprintable()
        assert len(str(end)) < 3000
        assert end.kind


def test_a_reply_of_ten_megabytes_is_read_whole_or_refused_by_its_size(misbehaving_server):
    reply = ask(misbehaving_server, "ten-megabytes", stream=False, limits=Limits())
    assert len(reply.text) == 10_000_000
    assert ask(misbehaving_server, "ten-megabytes", stream=False).kind == "too_large"


def test_a_reply_of_very_many_events_is_read_in_the_time_its_length_takes(misbehaving_server):
    start = time.process_time()
    reply = ask(misbehaving_server, "stream-many", limits=Limits())
    assert (len(reply.text), reply.chunks) == (20_000, 20_000)
    assert time.process_time() - start < 20.0
