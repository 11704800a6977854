"""Whatever a server does, an endpoint gives a faithful reply or a GenerationError, and never an invented answer."""

import asyncio
import logging
import socket

import pytest

from detharness.errors import UsageError
from detharness.targets.endpoint.http_client import Limits
from detharness.targets.endpoint.openai_endpoint import OpenAIEndpoint
from detharness.targets.generation import GenerationError, GenerationRequest, Reply
from detharness.targets.resolve_generation import resolve_generation

REQUEST = GenerationRequest(messages=[{"role": "user", "content": "What is 30 + 3?"}], max_tokens=16)
SECRET = "sk-a-secret-of-mine"
SHORT = Limits(connect=5.0, stall=0.3, total=5.0, body=2**22)
GOOD = Reply("The sum is \\boxed{33}.", finish_reason="stop", prompt_tokens=5, completion_tokens=7)


@pytest.fixture(autouse=True)
def _key(monkeypatch):
    monkeypatch.setenv("DETHARNESS_API_KEY", SECRET)


def ask(url, model, request=REQUEST, **options):
    """The reply, or the GenerationError itself."""

    async def once():
        endpoint = OpenAIEndpoint(url, model, **{"limits": SHORT, **options})
        try:
            return await endpoint.generate(request)
        except GenerationError as error:
            return error
        finally:
            await endpoint.close()

    return asyncio.run(once())


@pytest.mark.parametrize(
    ("model", "reply"),
    [
        ("good", GOOD),
        ("reasoning", Reply(GOOD.text, "Let me add.", None, "stop", 5, 7)),
        ("reasoning-elsewhere", Reply(GOOD.text, "Let me add.", None, "stop", 5, 7)),
        ("only-reasoning", Reply(None, "Let me", None, "length", 5, 7)),
        ("length", Reply("The sum", None, None, "length", 5, 7)),
        ("null", Reply(None, None, None, "stop", 5, 7)),
        ("no-finish", Reply(GOOD.text, None, None, None, 5, 7)),
        ("bare", Reply("33")),
        ("like-vllm", Reply(GOOD.text, None, (7, 8, 2), "stop", 5, 7, (-0.5, -1.25, 0.0))),
        ("odd-details", Reply(GOOD.text, None, None, "stop")),
        ("odder-details", Reply(GOOD.text, None, None, "stop")),
        ("oddest-details", Reply(GOOD.text, None, None, "stop")),
    ],
)
def test_a_reply_says_what_the_server_said_and_no_more(misbehaving_server, model, reply):
    assert ask(misbehaving_server.url, model) == reply


@pytest.mark.parametrize(
    ("model", "kind", "retriable", "sentence"),
    [
        ("429", "http_429", True, "the server answered 429: slow down"),
        ("500", "http_500", True, "the server answered 500: this is status 500"),
        ("502-html", "http_502", True, "the server answered 502: <html><h1>502 Bad Gateway</h1> </html>"),
        ("401", "http_401", False, "the server answered 401: this is status 401"),
        ("404", "http_404", False, "the server answered 404: this is status 404"),
        ("text-only", "refused", False, "the server answered 400: this model takes no images"),
        (
            "redirect",
            "http_307",
            False,
            "the server answered 307: a redirect to http://elsewhere.invalid/v1/chat/completions, which is not "
            "followed: give that URL",
        ),
        ("redirect-nowhere", "http_302", False, "the server answered 302: without a message"),
        ("stalls", "timeout", True, "the reply stopped in its middle for 0.3 seconds"),
        ("floods", "too_large", False, "the reply is larger than 4194304 bytes"),
        ("cut-without-length", "bad_response", True, "the reply is not whole JSON"),
        ("stream", "bad_response", True, "the reply is not whole JSON"),
        ("html", "bad_response", True, "the reply is not whole JSON"),
        ("compressed", "bad_response", True, "the reply is not whole JSON"),
        ("empty", "bad_response", True, "the reply is not whole JSON"),
        ("invalid-utf8", "bad_response", True, "the reply is not whole JSON"),
        ("surrogate", "bad_response", True, "the reply is not whole JSON"),
        ("nan", "bad_response", True, "the reply is not whole JSON"),
        ("infinite", "bad_response", True, "the reply is not whole JSON"),
        ("deep", "bad_response", True, "the reply is not whole JSON"),
        ("a-list", "bad_response", False, "the reply is not a chat completion: it has no list of choices"),
        ("no-choices", "bad_response", False, "the reply is not a chat completion: it has no list of choices"),
        ("zero-choices", "bad_response", False, "the reply has 0 choices, and one was asked for"),
        ("two-choices", "bad_response", False, "the reply has 2 choices, and one was asked for"),
        ("no-message", "bad_response", False, "the reply's choice has no message"),
        ("parts", "bad_response", False, "the reply's content is neither a text nor null"),
        ("number", "bad_response", False, "the reply's content is neither a text nor null"),
        ("odd-finish", "bad_response", False, "the reply's finish_reason is neither a text nor null"),
        ("error-in-200", "bad_response", True, "the server answered with an error: upstream is away"),
        ("aborted", "bad_response", True, "the server broke the reply off (finish_reason 'abort')"),
    ],
)
def test_what_is_no_reply_is_an_error_that_says_why(misbehaving_server, model, kind, retriable, sentence):
    error = ask(misbehaving_server.url, model)
    assert isinstance(error, GenerationError)
    assert (error.kind, error.retriable, str(error)) == (kind, retriable, sentence)


@pytest.mark.parametrize("model", ["cut-by-length", "cut-in-a-chunk", "cut-between-chunks", "hangs-up", "no-http"])
def test_a_connection_that_breaks_is_an_error_that_may_pass(misbehaving_server, model):
    error = ask(misbehaving_server.url, model)
    assert isinstance(error, GenerationError)
    assert (error.kind, error.retriable) == ("connection", True)


@pytest.mark.parametrize("model", ["silent", "drips"])
def test_a_request_ends_at_its_deadline_even_while_bytes_come(misbehaving_server, model):
    error = ask(misbehaving_server.url, model, limits=Limits(total=0.3))
    assert isinstance(error, GenerationError)
    assert (error.kind, error.retriable) == ("timeout", True)
    assert str(error) == "no whole reply came within 0.3 seconds"


def test_a_server_that_is_not_there_is_an_error_that_may_pass():
    with socket.socket() as taken:  # Bound and not listening, so nobody answers there.
        taken.bind(("127.0.0.1", 0))
        error = ask(f"http://127.0.0.1:{taken.getsockname()[1]}/v1", "good")
    assert isinstance(error, GenerationError)
    assert (error.kind, error.retriable) == ("connection", True)


def test_a_server_that_speaks_no_tls_is_an_error_that_stays(misbehaving_server):
    error = ask(misbehaving_server.url.replace("http:", "https:"), "good")
    assert isinstance(error, GenerationError)
    assert (error.kind, error.retriable) == ("tls", False)


def test_the_time_that_a_server_asks_for_is_handed_on(misbehaving_server):
    assert ask(misbehaving_server.url, "429").retry_after == 7.0
    assert 3500.0 < ask(misbehaving_server.url, "429-date").retry_after <= 3600.0
    assert ask(misbehaving_server.url, "429-soon").retry_after is None
    assert ask(misbehaving_server.url, "500").retry_after is None


def test_a_request_says_what_was_asked_and_nothing_that_stands_at_its_default(misbehaving_server):
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    messages = [{"role": "user", "content": [{"type": "text", "text": "What is this?"}, picture]}]
    full = GenerationRequest(
        messages=messages, max_tokens=9, temperature=0.5, top_p=0.9, top_k=40, min_p=0.1, stop=("\n",), seed=2**63 - 1
    )
    ask(misbehaving_server.url + "/", "good")
    ask(misbehaving_server.url, "good", full)
    plain, asked = misbehaving_server.requests
    assert plain["headers"]["accept-encoding"] == "identity"  # A small body must not unpack to a huge one.
    assert plain["path"] == asked["path"] == "/v1/chat/completions"
    base = {"model": "good", "stream": False}
    assert plain["body"] == {**base, "messages": REQUEST.messages, "max_tokens": 16, "temperature": 0.0}
    assert asked["body"] == {
        **base,
        "messages": messages,
        "max_tokens": 9,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.1,
        "stop": ["\n"],
        "seed": 2**63 - 1,
    }


def test_token_ids_and_logprobs_are_asked_of_a_server_that_knows_them_and_of_no_other(misbehaving_server):
    for model in ("like-vllm", "good"):
        ask(misbehaving_server.url, model, details=True)
    bodies = [request["body"] for request in misbehaving_server.requests if request["body"]]
    assert [(body.get("return_token_ids"), body.get("logprobs")) for body in bodies] == [(True, True), (None, None)]


def test_images_are_not_sent_where_they_are_not_taken(misbehaving_server):
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    request = GenerationRequest(messages=[{"role": "user", "content": [part]}], max_tokens=1)
    error = ask(misbehaving_server.url, "good", request, accepts_images=False)
    assert (error.kind, error.retriable) == ("refused", False)
    assert misbehaving_server.requests == []


def test_a_text_that_json_cannot_hold_is_refused_unsent(misbehaving_server):
    request = GenerationRequest(messages=[{"role": "user", "content": "\ud800"}], max_tokens=1)
    assert (ask(misbehaving_server.url, "good", request).kind) == "refused"
    assert misbehaving_server.requests == []


def test_a_cancelled_request_leaves_the_endpoint_usable(misbehaving_server):
    async def cancel_and_ask():
        silent = OpenAIEndpoint(misbehaving_server.url, "silent-once", limits=SHORT)
        try:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(silent.generate(REQUEST), 0.2)
            return await silent.generate(REQUEST)
        finally:
            await silent.close()

    assert asyncio.run(cancel_and_ask()) == GOOD


def test_many_requests_are_under_way_at_once(misbehaving_server):
    async def many():
        endpoint = OpenAIEndpoint(misbehaving_server.url, "silent", limits=Limits(total=60.0))
        asked = [asyncio.create_task(endpoint.generate(REQUEST)) for _ in range(150)]
        while len(misbehaving_server.requests) < 150:
            assert not any(task.done() for task in asked)  # All of them wait for the server, none for another.
            await asyncio.sleep(0.01)
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
        await endpoint.close()

    asyncio.run(many())


def test_of_many_requests_at_once_each_gets_its_own_end(misbehaving_server):
    requests = [GenerationRequest(messages=[{"role": "user", "content": str(n)}], max_tokens=1) for n in range(60)]

    async def all_of_them():
        target = resolve_generation(misbehaving_server.url, model="mixed", kernels="torch", dtype="fp32", timeout=1.5)
        try:
            return await asyncio.gather(*map(target.generate, requests), return_exceptions=True)
        finally:
            await target.close()

    ends = [end.kind if isinstance(end, GenerationError) else end for end in asyncio.run(all_of_them())]
    null, length = Reply(None, None, None, "stop", 5, 7), Reply("The sum", None, None, "length", 5, 7)
    assert {end for end in ends if isinstance(end, Reply)} == {GOOD, null, length}
    kinds = {"http_429", "http_500", "timeout", "connection", "bad_response"}
    assert {end for end in ends if isinstance(end, str)} == kinds


# The key.


def test_the_key_is_sent_to_the_server_and_found_nowhere_else(misbehaving_server, caplog):
    caplog.set_level(logging.DEBUG)
    endpoint = OpenAIEndpoint(misbehaving_server.url, "good")
    shown = [repr(endpoint.describe()), repr(endpoint), repr(vars(endpoint)["_client"])]
    for model in ("shows-the-key", "redirect", "cut-by-length", "429"):
        error = ask(misbehaving_server.url, model)
        assert isinstance(error, GenerationError)
        shown += [str(error), repr(error), repr(error.__cause__), error.kind]
    assert all(request["headers"]["authorization"] == f"Bearer {SECRET}" for request in misbehaving_server.requests)
    assert caplog.text  # The client does log, so that an empty log cannot pass.
    assert SECRET not in "\n".join([*shown, caplog.text])
    assert "bad key: Bearer ***" in str(ask(misbehaving_server.url, "shows-the-key"))


def test_a_key_of_our_own_name_comes_first_and_an_empty_one_does_not_count(misbehaving_server, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "second")
    ask(misbehaving_server.url, "good")
    monkeypatch.setenv("DETHARNESS_API_KEY", "")
    ask(misbehaving_server.url, "good")
    monkeypatch.delenv("OPENAI_API_KEY")
    ask(misbehaving_server.url, "good")
    sent = [request["headers"].get("authorization") for request in misbehaving_server.requests]
    assert sent == [f"Bearer {SECRET}", "Bearer second", None]


def test_proxies_of_the_environment_do_not_see_the_key(misbehaving_server, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    assert ask(misbehaving_server.url, "good") == GOOD


@pytest.mark.parametrize("key", ["a b", "a\nx-evil: 1", "schlüssel"])
def test_a_key_that_no_header_can_hold_is_refused_without_being_shown(monkeypatch, key):
    monkeypatch.setenv("DETHARNESS_API_KEY", key)
    with pytest.raises(UsageError, match="DETHARNESS_API_KEY holds a space") as refused:
        OpenAIEndpoint("http://host/v1", "m")
    assert key not in str(refused.value)


def test_what_a_server_says_is_shown_escaped_and_short(misbehaving_server):
    said = str(ask(misbehaving_server.url, "escapes"))
    assert said == r"the server answered 500: \x1b[2J\u202eevil\nline"
    much = str(ask(misbehaving_server.url, "says-much", limits=Limits()))
    assert much == "the server answered 500: " + r"\x1b" * 300 + "..."


def test_no_request_depends_on_those_before_it(misbehaving_server):
    async def twice():
        endpoint = OpenAIEndpoint(misbehaving_server.url, "cookie", limits=SHORT)
        for _ in range(2):
            await endpoint.generate(REQUEST)
        await endpoint.close()

    asyncio.run(twice())
    first, second = misbehaving_server.requests
    assert first == second


# The address and the model card.


@pytest.mark.parametrize(
    "url",
    ["", "host/v1", "ftp://host/v1", "http:///v1", "http://host", "http://host/", "http://[::1/v1"],
)
def test_what_is_no_base_url_is_refused(url):
    with pytest.raises(UsageError, match="URL"):
        OpenAIEndpoint(url, "m")


@pytest.mark.parametrize(
    "url", ["http://user:pass-word@host/v1", "http://host/v1?key=pass-word", "http://host/v1#pass-word"]
)
def test_a_url_that_may_hold_a_secret_is_refused_without_being_shown(url):
    with pytest.raises(UsageError, match="the URL of host holds") as refused:
        OpenAIEndpoint(url, "m")
    assert "pass-word" not in str(refused.value)


def test_the_card_of_the_model_tells_owner_and_context(misbehaving_server):
    known = OpenAIEndpoint(misbehaving_server.url, "like-vllm", details=True)
    assert known.context_length == 4096
    assert known.describe() == {
        "form": "openai",
        "url": misbehaving_server.url,
        "model": "like-vllm",
        "server": "vllm",
        "context_length": 4096,
        "asks_for": ["logprobs", "return_token_ids"],
    }
    assert len(misbehaving_server.requests) == 1  # Read once.
    unlisted = OpenAIEndpoint(misbehaving_server.url, "unheard of", details=True)
    assert (unlisted.describe()["server"], unlisted.context_length) == (None, None)


@pytest.mark.parametrize("base", ["other", "private"])
def test_a_server_without_a_list_of_models_is_not_asked_again(misbehaving_server, base):
    endpoint = OpenAIEndpoint(f"{misbehaving_server.host}/{base}/v1", "good")
    assert endpoint.context_length is endpoint.describe()["server"] is None
    assert len(misbehaving_server.requests) == 1


@pytest.mark.parametrize(
    ("base", "sentence"),
    [("down", "cannot be asked for its models: the server answered 503"), ("locked", "set DETHARNESS_API_KEY")],
)
def test_a_target_is_not_described_in_a_bad_moment(misbehaving_server, base, sentence):
    with pytest.raises(UsageError, match=sentence) as refused:
        OpenAIEndpoint(f"{misbehaving_server.host}/{base}/v1", "good").describe()
    assert SECRET not in str(refused.value)


def test_the_card_can_be_read_while_an_event_loop_runs(misbehaving_server):
    async def describe():
        return OpenAIEndpoint(misbehaving_server.url, "like-vllm").context_length

    assert asyncio.run(describe()) == 4096


def test_an_endpoint_that_is_not_asked_sends_nothing(misbehaving_server):
    asyncio.run(OpenAIEndpoint(misbehaving_server.url, "good", details=True).close())
    assert misbehaving_server.requests == []


def test_fingerprints_come_with_the_replies(misbehaving_server):
    async def twice():
        endpoint = OpenAIEndpoint(misbehaving_server.url, "good", limits=SHORT)
        before = endpoint.fingerprints
        await endpoint.generate(REQUEST)
        await endpoint.generate(REQUEST)
        await endpoint.close()
        return before, endpoint.fingerprints

    assert asyncio.run(twice()) == ((), ("fp-1",))
