"""A served model is asked by either API, whole or streamed, and what it says of its tokens is read by every name."""

import asyncio
import logging
import math

import pytest
import scripted_model as model

from detharness.errors import UsageError
from detharness.targets.endpoint.served import ServedEndpoint
from detharness.targets.generation import GenerationError
from detharness.targets.serving import ServedRequest

PROMPT = "What is 2+3?"
SECRET = "sk-a-secret-of-mine"


@pytest.fixture(autouse=True)
def _no_key(monkeypatch):
    monkeypatch.delenv("DETHARNESS_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def request_to(api, **fields):
    asked = {"messages": [{"role": "user", "content": PROMPT}]} if api == "chat" else {"prompt": PROMPT}
    return ServedRequest(**{**asked, "max_tokens": 12, **fields})


def with_endpoint(server, use, **options):
    """What ``use(endpoint)`` returns; the endpoint is closed after it."""

    async def go():
        endpoint = ServedEndpoint(server.url, "scripted", **options)
        try:
            return await use(endpoint)
        finally:
            await endpoint.close()

    return asyncio.run(go())


def ask(server, *requests, api="completions", **options):
    """The replies to ``requests``, one after the other; one alone by itself."""

    async def in_turn(endpoint):
        return [await endpoint.ask(request) for request in requests or [request_to(api)]]

    replies = with_endpoint(server, in_turn, api=api, **options)
    return replies if len(requests) > 1 else replies[0]


def what(reply):
    """All of a reply but its times and chunks."""
    return {name: value for name, value in vars(reply).items() if "seconds" not in name and name != "chunks"}


APIS = pytest.mark.parametrize("api", ["chat", "completions"])


@APIS
def test_a_stream_says_what_the_whole_reply_says(open_scripted, api):
    server = open_scripted(prefix_cache=True)
    asked = {"logprobs": 3, "token_ids_back": True, "max_tokens": 40}
    cold, whole, stream = ask(
        server, request_to(api, max_tokens=40), request_to(api, **asked), request_to(api, **asked, stream=True), api=api
    )
    assert what(whole) == what(stream)
    assert (whole.chunks, stream.chunks) == (None, 40)
    assert whole.text == cold.text == model.decode(whole.token_ids)
    assert (whole.finish_reason, whole.completion_tokens, whole.fingerprint) == ("length", 40, "fp-scripted")
    prompt = model.encode(PROMPT if api == "completions" else f"user: {PROMPT}\nassistant:")
    assert whole.prompt_tokens == len(prompt)
    assert whole.cached_tokens == (16 if api == "chat" else 0)
    assert [entry.token_id for entry in whole.tokens] == [None] * 40
    assert b"".join(entry.raw for entry in whole.tokens).decode() == whole.text
    assert all(len(entry.top) == 3 and entry.top[0][1] >= entry.top[1][1] for entry in whole.tokens)
    assert all(entry.logprob == entry.top[0][1] for entry in whole.tokens)
    assert 0 <= stream.first_seconds <= stream.seconds


def test_a_prompt_goes_out_as_text_or_as_ids(open_scripted):
    server = open_scripted()
    ids = tuple(model.encode(PROMPT))
    text, tokens = ask(server, request_to("completions"), ServedRequest(token_ids=ids, max_tokens=12))
    assert what(text) == what(tokens)
    assert [request["body"]["prompt"] for request in server.requests] == [PROMPT, list(ids)]


@APIS
def test_what_stands_at_its_default_is_not_sent(open_scripted, api):
    server = open_scripted()
    full = request_to(
        api,
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        min_p=0.1,
        stop=("\n",),
        ignore_eos=True,
        seed=2**63 - 1,
        logprobs=2,
        token_ids_back=True,
        cache_salt="s",
        stream=True,
        fields={"min_tokens": 3, "max_tokens": 5},
    )
    ask(server, request_to(api), request_to(api, logprobs=0), full, api=api)
    plain, zero, asked = (request["body"] for request in server.requests)
    prompt = {"messages": [{"role": "user", "content": PROMPT}]} if api == "chat" else {"prompt": PROMPT}
    base = {"model": "scripted", **prompt, "max_tokens": 12, "temperature": 0.0, "stream": False}
    assert plain == base
    assert zero == {**base, "logprobs": True if api == "chat" else 0}
    assert asked == {
        **base,
        "max_tokens": 5,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.1,
        "stop": ["\n"],
        "ignore_eos": True,
        "seed": 2**63 - 1,
        **({"logprobs": True, "top_logprobs": 2} if api == "chat" else {"logprobs": 2}),
        "return_token_ids": True,
        "return_tokens": True,
        "return_meta_info": True,
        "cache_salt": "s",
        "stream": True,
        "stream_options": {"include_usage": True},
        "min_tokens": 3,
    }


@APIS
@pytest.mark.parametrize(
    ("switch", "by", "fields"),
    [
        ("return_token_ids", "token_ids", {}),
        ("return_tokens", "tokens", {}),
        ("return_meta_info", "meta_info", {}),
        ("entries", "logprobs", {}),
        ("return_tokens_as_token_ids", "logprobs", {"return_tokens_as_token_ids": True}),
        (None, None, {"return_tokens_as_token_ids": True}),
    ],
)
def test_ids_are_found_by_every_name_and_the_name_is_told(open_scripted, api, switch, by, fields):
    if (api, switch) == ("completions", "entries"):
        return  # Its columns have no room for ids.
    asked = {"token_ids_back": True, "logprobs": 1, "fields": fields, "max_tokens": 30}
    server = open_scripted(ids=switch)
    whole, stream = ask(server, request_to(api, **asked), request_to(api, **asked, stream=True), api=api)
    assert what(whole) == what(stream)
    assert whole.token_ids_by == by
    assert (None if whole.token_ids is None else model.decode(whole.token_ids)) == (whole.text if by else None)


def test_a_name_that_holds_an_id_is_no_text_and_has_no_bytes(open_scripted):
    server = open_scripted(ids="return_tokens_as_token_ids")
    for api in ("chat", "completions"):
        reply = ask(server, request_to(api, logprobs=1, fields={"return_tokens_as_token_ids": True}), api=api)
        first = reply.tokens[0]
        assert (first.text, first.raw) == (f"token_id:{first.token_id}", None)


@APIS
def test_bytes_are_those_given_or_those_of_a_text_that_stands_for_them(open_scripted, api):
    emoji = next(  # A prompt whose reply holds a character in two tokens.
        f"p{n}" for n in range(200) if "🙂" in ask_text(open_scripted, f"p{n}", api)
    )
    for given in (True, False):
        asked = {"prompt": emoji} if api == "completions" else {"messages": [{"role": "user", "content": emoji}]}
        reply = ask(open_scripted(bytes=given), ServedRequest(**asked, max_tokens=40, logprobs=1), api=api)
        halves = [entry.raw for entry in reply.tokens if "\ufffd" in entry.text]
        shown = given and api == "chat"  # Completions have no bytes.
        assert halves[:2] == ([b" \xf0\x9f", b"\x99\x82"] if shown else [None, None])


def ask_text(open_scripted, prompt, api):
    """The scripted model's own text for ``prompt``, without a server."""
    ids = model.encode(prompt if api == "completions" else f"user: {prompt}\nassistant:")
    made = []
    state = model.start(ids)
    for _ in range(40):
        made.append(model.logprobs(state, (made or ids)[-1])[0][0])
        state = model.advance(state, made[-1])
    return model.decode(made)


@APIS
@pytest.mark.parametrize("shown", [math.nan, -math.inf, None, "-0.5", True, [], {}])
def test_an_odd_logprob_is_an_entry_without_a_number(open_scripted, api, shown):
    server = open_scripted(logprob_shown=lambda value: shown)
    asked = request_to(api, logprobs=2), request_to(api, logprobs=2, stream=True)
    for reply in ask(server, *asked, api=api):
        assert [entry.logprob for entry in reply.tokens] == [None] * 12
        assert all(entry.text for entry in reply.tokens)


@APIS
def test_what_a_server_does_not_tell_is_none(open_scripted, api):
    server = open_scripted(ids=None, logprobs=False, usage=False, cached_shown=None, fingerprint=None)
    asked = {"logprobs": 2, "token_ids_back": True}
    for reply in ask(server, request_to(api, **asked), request_to(api, **asked, stream=True), api=api):
        told = {name: value for name, value in what(reply).items() if value is not None}
        assert set(told) == {"text", "finish_reason"}


def test_cached_tokens_are_found_in_either_place(open_scripted):
    for place in ("usage", "timings"):
        server = open_scripted(prefix_cache=True, cached_shown=place)
        long = {"prompt": "x" * 40, "max_tokens": 2}
        replies = ask(server, ServedRequest(**long), ServedRequest(**long), ServedRequest(**long, stream=True))
        assert [reply.cached_tokens for reply in replies] == [0, 32, 32]


def test_a_stream_that_was_asked_for_and_not_given_has_no_chunks(open_scripted):
    reply = ask(open_scripted(streaming="ignored"), request_to("completions", stream=True))
    assert (reply.chunks, reply.first_seconds) == (None, None)
    assert reply.text == ask(open_scripted()).text


def test_a_stream_that_loses_a_token_shows_no_ids_that_could_be_miscounted(open_scripted):
    asked = {"token_ids_back": True, "logprobs": 1, "stream": True}
    whole, lossy = (
        ask(open_scripted(streaming=streaming), request_to("completions", **asked))
        for streaming in ("equal", "loses_a_token")
    )
    assert lossy.text != whole.text
    assert (lossy.token_ids, lossy.tokens) == (None, None)
    assert len(whole.token_ids) == len(whole.tokens) == lossy.completion_tokens == 12


def test_many_tokens_may_come_in_one_chunk(open_scripted):
    asked = {"token_ids_back": True, "logprobs": 1, "stream": True}
    one, five = (ask(open_scripted(tokens_per_chunk=size), request_to("completions", **asked)) for size in (1, 5))
    assert what(one) == what(five)
    assert (one.chunks, five.chunks) == (12, 3)


def test_a_request_of_the_other_api_is_a_mistake_of_the_caller(open_scripted):
    server = open_scripted()
    for api, other in (("chat", "completions"), ("completions", "chat")):
        with pytest.raises(ValueError, match=f"a request to the {api} API holds"):
            ask(server, request_to(other), api=api)
    with pytest.raises(ValueError, match="holds"):
        ask(server, ServedRequest(prompt="x", token_ids=(1,), max_tokens=1))
    assert server.requests == []


# Connections.


def test_no_more_connections_are_open_than_were_allowed(open_scripted):
    server = open_scripted(seconds_per_step=0.002)

    async def many(endpoint):
        asked = [request_to("completions", max_tokens=4, seed=seed) for seed in range(40)]
        return await asyncio.gather(*map(endpoint.ask, asked))

    replies = with_endpoint(server, many, api="completions", connections=7)
    assert server.most_in_flight == server.engine.largest_batch == 7
    assert sum(reply.waited_seconds > 0.005 for reply in replies) >= 26  # All but the first seven wait for others.
    assert server.most_connections <= 7

    server = open_scripted(seconds_per_step=0.002, settle=0.05)
    replies = with_endpoint(server, many, api="completions")
    assert server.most_in_flight == 40


def test_requests_in_turn_share_a_connection(open_scripted):
    server = open_scripted()
    ask(server, *[request_to("completions", stream=stream) for stream in (False, True, False, True)])
    assert server.most_connections == server.connections == 1


def test_no_connections_are_refused(open_scripted):
    with pytest.raises(UsageError, match="at least 1"):
        ServedEndpoint("http://host/v1", "m", connections=0)


# Who it is.


def test_a_server_is_described_by_what_it_tells(open_scripted):
    server = open_scripted(owned_by="vllm")
    described = with_endpoint(
        server, lambda endpoint: endpoint.describe(), api="chat", connections=3, headers=[f"X-Secret: {SECRET}"]
    )
    assert described == {
        "form": "server",
        "url": server.url,
        "model": "scripted",
        "api": "chat",
        "server": "vllm",
        "version": "1.2.3",
        "listed": True,
        "context_length": 8192,
        "connections": 3,
        "headers": ["x-secret"],
    }
    assert [request["path"] for request in server.requests] == ["/v1/models", "/version"]


@pytest.mark.parametrize(("owner", "version"), [("llamacpp", "b123-abc"), ("sglang", "1.2.3"), ("scripted", None)])
def test_a_version_is_asked_of_those_who_tell_one(open_scripted, owner, version):
    described = with_endpoint(open_scripted(owned_by=owner), lambda endpoint: endpoint.describe())
    assert described["version"] == version


def test_a_server_that_lets_nobody_in_is_told_from_one_that_is_not_there(open_scripted):
    with pytest.raises(UsageError, match="lets nobody in with this key"):
        with_endpoint(open_scripted(key="k"), lambda endpoint: endpoint.describe())
    server = open_scripted()
    server.server_close()
    with pytest.raises(UsageError, match="cannot be asked for its models: the connection failed"):
        asyncio.run(ServedEndpoint("http://127.0.0.1:9/v1", "m").describe())


def test_an_unknown_model_is_told_by_the_list_and_by_the_server(open_scripted):
    server = open_scripted()

    async def both():
        endpoint = ServedEndpoint(server.url, "other", api="completions")
        with pytest.raises(GenerationError) as wrong:
            await endpoint.ask(request_to("completions"))
        described = await endpoint.describe()
        await endpoint.close()
        return described["listed"], wrong.value

    listed, error = asyncio.run(both())
    assert listed is False
    assert (error.kind, str(error)) == ("http_404", "the server answered 404: The model `other` does not exist.")


# Secrets.


def test_headers_are_sent_and_found_nowhere_else(open_scripted, monkeypatch, caplog):
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("DETHARNESS_API_KEY", "sk-of-the-environment")
    headers = [f"Authorization: Basic {SECRET}", "X-Route: blue-green-secret"]
    server = open_scripted(fault=lambda number: ("shows-the-key", "stream-error-of-the-key", None)[number % 3])

    async def shown():
        endpoint = ServedEndpoint(server.url, "scripted", headers=headers)
        found = [repr(endpoint), repr(await endpoint.describe())]
        for stream in (False, True):
            with pytest.raises(GenerationError) as error:
                await endpoint.ask(request_to("chat", stream=stream))
            found += [str(error.value), repr(error.value)]
        await endpoint.ask(request_to("chat"))
        await endpoint.close()
        return found

    found = asyncio.run(shown())
    assert {request["headers"]["authorization"] for request in server.requests} == {f"Basic {SECRET}"}
    assert {request["headers"]["x-route"] for request in server.requests} == {"blue-green-secret"}
    assert caplog.text
    for secret in (SECRET, "blue-green-secret", "sk-of-the-environment"):
        assert secret not in "\n".join([*found, caplog.text])
    assert sum("***" in one for one in found) == 4


def test_a_reply_that_shows_a_secret_is_shown_without_it(open_scripted):
    plain = ask(open_scripted(), request_to("completions", logprobs=1, token_ids_back=True))
    word = plain.text[-20:].strip()
    hidden = ask(
        open_scripted(), request_to("completions", logprobs=1, token_ids_back=True), headers=[f"X-Key: {word}"]
    )
    assert hidden.text == plain.text.replace(word, "***") != plain.text
    assert (hidden.tokens, hidden.token_ids, hidden.token_ids_by) == (None, None, None)
