"""An OpenAI-compatible server that misbehaves as the model's name says; ``mixed`` picks by a digest of the request.

``NAME-once`` misbehaves at the first of equal requests and answers the next. Every request is kept in ``requests``.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self, cast

import pytest

TEXT = "The sum is \\boxed{33}."


def completion(content: Any = TEXT, *, finish_reason: str | None = "stop", **choice: Any) -> dict[str, Any]:
    """A chat completion as servers send it; ``message``: further fields of the message."""
    message = {"role": "assistant", "content": content, **choice.pop("message", {})}
    return {
        "id": "x",
        "object": "chat.completion",
        "model": "m",
        "choices": [{"index": 0, "message": message, "finish_reason": finish_reason, **choice}],
        "usage": {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12},
        "system_fingerprint": "fp-1",
    }


def logprobs(*values: Any) -> dict[str, Any]:
    """The logprobs of a choice."""
    return {"content": [{"token": "t", "logprob": value, "top_logprobs": []} for value in values]}


WHOLE = json.dumps(completion()).encode()


class Handler(BaseHTTPRequestHandler):
    """One connection. ``server.ends`` is set when the fixture goes, and ends what waits."""

    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, *arguments: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        """Keep the request, and answer."""
        self.server.requests.append({"path": self.path, "headers": dict(self.headers), "body": None})
        with self.unless_the_client_left():
            self.get()

    def do_POST(self) -> None:
        """Keep the request, and answer."""
        content = self.rfile.read(int(self.headers["Content-Length"]))
        body = json.loads(content)
        self.server.requests.append({"path": self.path, "headers": dict(self.headers), "body": body})
        with self.unless_the_client_left():
            self.post(content, body)

    def get(self) -> None:
        """The list of models, or none below another base than /v1."""
        status = {
            "/v1/models": 200,
            "/down/v1/models": 503,
            "/locked/v1/models": 401,
            "/private/v1/models": 403,
        }.get(self.path, 404)
        if status != 200:
            self.send(status, {"error": {"message": f"no models: {self.headers.get('Authorization')}"}})
            return
        cards: list[dict[str, Any]] = [{"id": name, "object": "model", "owned_by": "test"} for name in BEHAVIOURS]
        for card in cards:
            if card["id"] == "like-vllm":
                card.update(owned_by="vllm", max_model_len=4096)
        self.send(200, {"object": "list", "data": cards})

    def post(self, content: bytes, body: dict[str, Any]) -> None:
        """A chat completion, or what the model's name asks for instead."""
        name, digest = body["model"], hashlib.sha256(content).digest()
        server = cast(MisbehavingServer, self.server)
        with server.lock:
            server.seen[digest] += 1
            if name.endswith("-once"):
                name = name.removesuffix("-once") if server.seen[digest] == 1 else "good"
        if name == "mixed":
            name = MIXED[digest[0] % len(MIXED)]
        self.misbehave(name)

    def misbehave(self, name: str) -> None:
        """Answer as ``name`` of BEHAVIOURS does; 404 where there is none."""
        behaviour = BEHAVIOURS.get(name, 404)
        if callable(behaviour):
            behaviour(self)
        elif isinstance(behaviour, int):
            self.send(behaviour, {"error": {"message": f"this is status {behaviour}"}})
        else:
            self.send(200, behaviour)

    @contextmanager
    def unless_the_client_left(self) -> Iterator[None]:
        """Write as long as somebody reads."""
        try:
            yield
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def send(
        self, status: int, body: Any, *, kind: str = "application/json", length: int | None = None, **headers: str
    ) -> None:
        """A response of ``body``: bytes, or JSON of anything else. ``length`` may lie."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.begin(status, kind, **{"Content-Length": str(len(data) if length is None else length), **headers})
        self.wfile.write(data)
        if length is not None:
            self.close_connection = True

    def begin(self, status: int, kind: str = "application/json", **headers: str) -> None:
        """Status and headers alone."""
        self.send_response(status)
        self.send_header("Content-Type", kind)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def until_the_client_leaves(self, data: bytes, seconds: float) -> None:
        """Write ``data`` again and again."""
        while not self.server.ends.wait(seconds):
            self.wfile.write(data)


def _too_many(handler: Handler) -> None:
    handler.send(429, {"error": {"message": "slow down"}}, Retry_After="7")


def _too_many_until_a_date(handler: Handler) -> None:
    date = handler.date_time_string(int(time.time()) + 3600)
    handler.send(429, {"error": {"message": "slow down"}}, Retry_After=date)


def _too_many_until_soon(handler: Handler) -> None:
    handler.send(429, {"error": "slow down"}, Retry_After="soon")


def _text_only(handler: Handler) -> None:
    handler.send(400, {"object": "error", "message": "this model takes no images", "code": 400})


def _redirect(handler: Handler) -> None:
    handler.send(307, b"", Location="http://elsewhere.invalid/v1/chat/completions")


def _redirect_nowhere(handler: Handler) -> None:
    handler.send(302, b"")


def _sets_a_cookie(handler: Handler) -> None:
    handler.send(200, completion(), Set_Cookie="seen=1; Path=/")


def _says_much(handler: Handler) -> None:
    handler.send(500, {"error": {"message": "\x1b" * 10_000_000}})


def _shows_the_key(handler: Handler) -> None:
    handler.send(401, {"error": {"message": f"bad key: {handler.headers['Authorization']}"}})


def _escape_sequences(handler: Handler) -> None:
    handler.send(500, {"error": {"message": "\x1b[2J\u202eevil\nline"}})


def _silent(handler: Handler) -> None:
    handler.server.ends.wait()


def _stalls(handler: Handler) -> None:
    handler.begin(200, **{"Content-Length": str(len(WHOLE))})
    handler.wfile.write(WHOLE[:40])
    handler.server.ends.wait()


def _drips(handler: Handler) -> None:
    handler.begin(200, **{"Content-Length": "1000000"})
    handler.until_the_client_leaves(b" ", 0.02)


def _floods(handler: Handler) -> None:
    handler.begin(200, **{"Content-Length": str(2**40)})
    handler.until_the_client_leaves(b" " * 2**20, 0.0)


def _cut_by_length(handler: Handler) -> None:
    handler.send(200, WHOLE[:-20], length=len(WHOLE))


def _cut_in_a_chunk(handler: Handler) -> None:
    handler.begin(200, Transfer_Encoding="chunked")
    handler.wfile.write(b"%x\r\n%s" % (len(WHOLE), WHOLE[:-20]))
    handler.close_connection = True


def _cut_between_chunks(handler: Handler) -> None:
    handler.begin(200, Transfer_Encoding="chunked")
    handler.wfile.write(b"%x\r\n%s\r\n" % (len(WHOLE), WHOLE))  # All of the JSON, but the end of the body never comes.
    handler.close_connection = True


def _cut_without_length(handler: Handler) -> None:
    handler.begin(200, Connection="close")
    handler.wfile.write(WHOLE[:-20])
    handler.close_connection = True


def _hangs_up(handler: Handler) -> None:
    handler.close_connection = True


def _no_http(handler: Handler) -> None:
    handler.wfile.write(b"\x16\x03\x01 not HTTP at all\r\n\r\n")
    handler.close_connection = True


def _stream(handler: Handler) -> None:
    chunk = {"choices": [{"index": 0, "delta": {"content": "The sum is"}, "finish_reason": None}]}
    handler.send(200, f"data: {json.dumps(chunk)}\n\n".encode(), kind="text/event-stream")


def _events(*parts: Any, whole: bool = True, kind: str = "text/event-stream") -> Callable[[Handler], None]:
    """A stream of ``parts``: bytes as they are, texts as the data of an event, anything else as JSON in one."""
    data = b"".join(
        part
        if isinstance(part, bytes)
        else b"data: %s\n\n" % (part if isinstance(part, str) else json.dumps(part)).encode()
        for part in parts
    )

    def answer(handler: Handler) -> None:
        handler.begin(200, kind, **({"Transfer_Encoding": "chunked"} if whole else {"Connection": "close"}))
        handler.wfile.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(data), data) if whole else data)
        handler.close_connection = not whole

    return answer


def chunk(content: Any = None, finish_reason: Any = None, **choice: Any) -> dict[str, Any]:
    """A chunk of a chat completion."""
    return {"choices": [{"index": 0, "delta": {"content": content}, "finish_reason": finish_reason, **choice}]}


def _stalls_in_a_stream(handler: Handler) -> None:
    handler.begin(200, "text/event-stream")
    handler.wfile.write(b"data: %s\n\n" % json.dumps(chunk("The sum")).encode())
    handler.server.ends.wait()


def _streams_without_end(handler: Handler) -> None:
    handler.begin(200, "text/event-stream")
    handler.until_the_client_leaves(b"data: %s\n\n" % json.dumps(chunk("more" * 10_000)).encode(), 0.0)


def _streams_a_line_without_end(handler: Handler) -> None:
    handler.begin(200, "text/event-stream")
    handler.wfile.write(b"data: ")
    handler.until_the_client_leaves(b"x" * 2**20, 0.0)


def _stays_after_the_stream(handler: Handler) -> None:
    handler.begin(200, "text/event-stream")
    handler.wfile.write(b"data: %s\n\ndata: [DONE]\n\n" % json.dumps(chunk("33", "stop")).encode())
    handler.server.ends.wait()


def _streams_cut_in_a_chunk(handler: Handler) -> None:
    data = b"data: %s\n\n" % json.dumps(chunk("33", "stop")).encode()
    handler.begin(200, "text/event-stream", Transfer_Encoding="chunked")
    handler.wfile.write(b"%x\r\n%s" % (len(data) + 1, data))
    handler.close_connection = True


def _html(handler: Handler) -> None:
    handler.send(200, b"<html><body>Please log in</body></html>", kind="text/html")


def _bad_gateway(handler: Handler) -> None:
    handler.send(502, b"<html><h1>502 Bad Gateway</h1>\n</html>", kind="text/html")


def _compressed(handler: Handler) -> None:
    handler.send(200, b"\x1f\x8b\x08" + bytes(20), Content_Encoding="gzip")


def _bytes(data: bytes) -> Callable[[Handler], None]:
    return lambda handler: handler.send(200, data)


# What the model's name does: a status, a JSON answer, or a function that answers.
BEHAVIOURS: dict[str, Any] = {
    "good": completion(),
    "like-vllm": completion(token_ids=[7, 8, 2], logprobs=logprobs(-0.5, -1.25, 0)),
    "reasoning": completion(message={"reasoning_content": "Let me add."}),
    "reasoning-elsewhere": completion(message={"reasoning_content": None, "reasoning": "Let me add."}),
    "only-reasoning": completion(None, finish_reason="length", message={"reasoning": "Let me"}),
    "length": completion("The sum", finish_reason="length"),
    "null": completion(None),
    "no-finish": completion(finish_reason=None),
    "bare": {"choices": [{"message": {"content": "33"}}]},
    "odd-details": completion(token_ids=[1, True], logprobs=logprobs(-0.5, None)) | {"usage": {"prompt_tokens": "5"}},
    "odder-details": completion(token_ids=[1, -3], logprobs=logprobs("-inf", -0.5)) | {"usage": []},
    "oddest-details": completion(token_ids=[1.0], logprobs=logprobs(True)) | {"usage": {"completion_tokens": True}},
    "infinite": _bytes(WHOLE.replace(b"12", b"1e400")),
    "429": _too_many,
    "429-date": _too_many_until_a_date,
    "429-soon": _too_many_until_soon,
    "500": 500,
    "502-html": _bad_gateway,
    "503": 503,
    "401": 401,
    "404": 404,
    "text-only": _text_only,
    "redirect": _redirect,
    "redirect-nowhere": _redirect_nowhere,
    "cookie": _sets_a_cookie,
    "says-much": _says_much,
    "shows-the-key": _shows_the_key,
    "escapes": _escape_sequences,
    "silent": _silent,
    "stalls": _stalls,
    "drips": _drips,
    "floods": _floods,
    "cut-by-length": _cut_by_length,
    "cut-in-a-chunk": _cut_in_a_chunk,
    "cut-between-chunks": _cut_between_chunks,
    "cut-without-length": _cut_without_length,
    "hangs-up": _hangs_up,
    "no-http": _no_http,
    "stream": _stream,
    "html": _html,
    "compressed": _compressed,
    "empty": _bytes(b""),
    "invalid-utf8": _bytes(WHOLE.replace(b"sum", b"s\xffm")),
    "surrogate": _bytes(WHOLE.replace(b"sum", b"s\\ud800m")),
    "nan": _bytes(WHOLE.replace(b'"stop"', b"NaN")),
    "deep": _bytes(b"[" * 100_000 + b"]" * 100_000),
    "a-list": [],
    "no-choices": {"id": "x"},
    "zero-choices": {"choices": []},
    "two-choices": {"choices": completion()["choices"] * 2},
    "no-message": {"choices": [{"text": "33", "finish_reason": "stop"}]},
    "parts": completion([{"type": "text", "text": "33"}]),
    "number": completion(33),
    "odd-finish": completion() | {"choices": [{"message": {"content": "33"}, "finish_reason": 1}]},
    "error-in-200": {"error": {"message": "upstream is away", "code": 502}},
    "aborted": completion("The sum", finish_reason="abort"),
    "ten-megabytes": completion("x" * 10_000_000),
    # Streams of chat completions.
    "stream-good": _events(
        chunk(""), chunk("The sum "), b": alive\n\n", chunk("is 33."), chunk(None, "stop"), "[DONE]"
    ),
    "stream-no-done": _events(chunk("33"), chunk(None, "stop")),
    "stream-no-finish": _events(chunk("33"), "[DONE]"),
    "stream-half": _events(chunk("The sum")),
    "stream-half-closed": _events(chunk("The sum"), whole=False),
    "stream-half-event": _events(chunk("The sum"), b'data: {"choices": [{"ind', whole=False),
    "stream-empty": _events(),
    "stream-html": _events(b"<html><body>Please log in</body></html>\n\n"),
    "stream-html-as-html": _events(b"<html>Please log in</html>", kind="text/html"),
    "stream-error": _events(chunk("The sum"), {"error": {"message": "out of memory", "code": 500}}, "[DONE]"),
    "stream-error-event": _events(chunk("The sum"), b"event: error\ndata: out of memory\n\n"),
    "stream-error-field": _events(chunk("The sum"), b'error: {"message": "out of memory"}\n\n'),
    "stream-error-object": _events(chunk("The sum"), {"object": "error", "message": "out of memory", "code": 500}),
    "stream-error-of-the-key": lambda handler: _events({"error": handler.headers["Authorization"]})(handler),
    "stream-aborted": _events(chunk("The sum"), chunk(None, "abort"), "[DONE]"),
    "stream-invalid-utf8": _events(
        chunk("The s"), b'data: {"choices": [{"delta": {"content": "\xff"}}]}\n\n', "[DONE]"
    ),
    "stream-two-choices": _events({"choices": chunk("33", "stop")["choices"] * 2}, "[DONE]"),
    "stream-number": _events(chunk(33, "stop"), "[DONE]"),
    "stream-no-json": _events("33", "hello", "[DONE]"),
    "stream-null-delta": _events(chunk("33"), {"choices": [{"delta": None, "finish_reason": "stop"}]}, "[DONE]"),
    "stream-many": _events(*[chunk("x")] * 20_000, chunk(None, "stop"), "[DONE]"),
    "stream-stalls": _stalls_in_a_stream,
    "stream-endless": _streams_without_end,
    "stream-endless-line": _streams_a_line_without_end,
    "stream-stays": _stays_after_the_stream,
    "stream-cut-in-a-chunk": _streams_cut_in_a_chunk,
}

MIXED = ("good", "429", "500", "silent", "cut-by-length", "null", "html", "drips", "length")


class Server(ThreadingHTTPServer):
    """Serves in threads of its own on a free port, from ``with`` to its end. connections: how many were ever made;
    most_connections: how many were ever open at once.
    """

    daemon_threads = True
    request_queue_size = 1024  # Bursts are accepted at once.

    def __init__(self, handler: type[Handler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.requests: list[dict[str, Any]] = []
        self.lock = threading.Lock()
        self.ends = threading.Event()
        self.connections = self.open_connections = self.most_connections = 0
        self._thread = threading.Thread(target=self.serve_forever, args=(0.01,))

    @property
    def host(self) -> str:
        """http://HOST:PORT."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def url(self) -> str:
        """The base URL."""
        return f"{self.host}/v1"

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Count a connection while it is open."""
        with self.lock:
            self.connections += 1
            self.open_connections += 1
            self.most_connections = max(self.most_connections, self.open_connections)
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self.lock:
                self.open_connections -= 1

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.ends.set()
        self.shutdown()
        self._thread.join()
        self.server_close()


class MisbehavingServer(Server):
    """``seen``: how often each body came."""

    def __init__(self) -> None:
        super().__init__(Handler)
        self.seen: Counter[bytes] = Counter()


@pytest.fixture
def misbehaving_server() -> Iterator[MisbehavingServer]:
    """A fresh server."""
    with MisbehavingServer() as server:
        yield server
