"""An OpenAI-compatible server whose replies are a function of the prompt, with a switch for what servers differ in.

``open_scripted(switch=...)`` opens one on a free port of this process; what it saw stands in its counters.
"""

from __future__ import annotations

import codecs
import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import scripted_model as model
from misbehaving_server import Handler, Server
from scripted_engine import Emitted, Engine, Sequence, Switches

MODEL = "scripted"


class ScriptedServer(Server):
    """``switches`` as they are. Counters, each proven by what came: ``requests`` (path, headers, body), ``generations``
    (requests for tokens), ``turned_away`` (429), ``most_in_flight`` (HTTP), ``engine.largest_batch`` and
    ``engine.batches`` (tokens of a step -> steps).
    """

    def __init__(self, switches: Switches) -> None:
        super().__init__(ScriptedHandler)
        self.switches = switches
        self.engine = Engine(switches, self.ends)
        self.engine.start()
        self.generations = 0
        self.turned_away = 0
        self.in_flight = 0
        self.most_in_flight = 0

    def flush(self) -> None:
        """Forget every cached prefix."""
        self.engine.flush()


class ScriptedHandler(Handler):
    """One connection."""

    server: ScriptedServer

    def get(self) -> None:
        """The list of models."""
        if not self._let_in():
            return
        card = {"id": MODEL, "object": "model", "owned_by": self.server.switches.owned_by, "max_model_len": 8192}
        if self.path == "/v1/models":
            self.send(200, {"object": "list", "data": [card]})
        elif self.path in ("/version", "/props", "/get_server_info"):
            self.send(200, {"version": "1.2.3", "build_info": "b123-abc"})
        else:
            self.send(404, {"detail": "Not Found"})

    def post(self, content: bytes, body: dict[str, Any]) -> None:
        """Tokens, or token ids."""
        switches = self.server.switches
        if not self._let_in():
            return
        api = {"/v1/chat/completions": "chat", "/v1/completions": "completions"}.get(self.path)
        if self.path == switches.tokenize:
            self._tokenize(body)
        elif api in switches.apis:
            self._admit(body)
        else:
            self.send(404, {"detail": "Not Found"})

    def _let_in(self) -> bool:
        key = self.server.switches.key
        if key is None or self.headers.get("Authorization") == f"Bearer {key}":
            return True
        self.send(401, {"error": {"message": "Unauthorized"}})
        return False

    def _tokenize(self, body: dict[str, Any]) -> None:
        by = self.server.switches.tokenize_by
        if by == "prompt" and not isinstance(body.get("prompt"), str):
            self.send(400, {"error": {"message": "prompt: field required"}})
            return
        ids = model.encode(body.get(by, ""))
        self.send(200, {"tokens": ids, **({"count": len(ids)} if by == "prompt" else {})})

    def _admit(self, body: dict[str, Any]) -> None:
        server, switches = self.server, self.server.switches
        with server.lock:
            number = server.generations
            server.generations += 1
            busy = number < switches.busy_first
            busy = busy or (switches.busy_above is not None and server.in_flight >= switches.busy_above)
            server.turned_away += busy
            server.in_flight += not busy
            server.most_in_flight = max(server.most_in_flight, server.in_flight)
        if busy:
            self.send(429, {"error": {"message": "too many requests"}}, Retry_After="0")
            return
        try:
            if (fault := switches.fault(number)) is not None:
                self.misbehave(fault)
            elif refused := sorted(switches.refuses & set(body)):
                self.send(422, {"detail": f"Unexpected keys in the request: {refused}"})
            elif body.get("model") != MODEL:
                self.send(404, {"error": {"message": f"The model `{body.get('model')}` does not exist."}})
            else:
                self._answer(body)
        finally:
            with server.lock:
                server.in_flight -= 1

    def _answer(self, body: dict[str, Any]) -> None:
        reply = Answer(self.server.switches, self.path == "/v1/chat/completions", body)
        reply.sequence = self.server.engine.add(reply.prompt, body)
        if not body.get("stream") or self.server.switches.streaming == "ignored":
            reply.sequence.done.wait()
            self.send(200, json.dumps(reply.whole()).encode())
            return
        self.begin(200, "text/event-stream", Transfer_Encoding="chunked")
        for event in reply.events():
            data = f"data: {event if isinstance(event, str) else json.dumps(event)}\n\n".encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.write(b"0\r\n\r\n")


class Answer:
    """One reply, in the shape of its API."""

    sequence: Sequence

    def __init__(self, switches: Switches, chat: bool, body: dict[str, Any]) -> None:
        self.switches = switches
        self.chat = chat
        self.body = body
        if chat:
            lines = [f"{message['role']}: {message['content']}\n" for message in body["messages"]]
            self.prompt = model.encode("".join([*lines, "assistant:"]))
            asked = (body.get("top_logprobs") or 0) if body.get("logprobs") else None
        else:
            prompt, asked = body["prompt"], body.get("logprobs")
            self.prompt = model.encode(prompt) if isinstance(prompt, str) else list(prompt)
        self.top = None if asked is None or not switches.logprobs else int(asked)

    def whole(self) -> dict[str, Any]:
        """The reply in one piece."""
        sequence, text = self.sequence, self.sequence.text
        echoed = bool(self.body.get("echo")) and self.switches.score == "echo"
        tokens = [*(self._scored() if echoed else ()), *sequence.tokens]
        if echoed:
            text = model.decode(self.prompt) + text
        choice = self._choice(text, tokens, sequence.finish_reason, begins=echoed)
        if "token_ids" in choice:
            choice["token_ids"] = sequence.ids  # Without what was echoed.
        if self.body.get("prompt_logprobs") is not None and self.switches.score == "prompt_logprobs":
            choice["prompt_logprobs"] = self._prompt_logprobs()
        return self._document([choice], usage=True, ids=sequence.ids)

    def events(self) -> Iterator[dict[str, Any] | str]:
        """The reply as the data of events. Where a stop text may come, all text waits for the end."""
        sequence, held = self.sequence, []
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        yield self._document([self._choice("", [], None, role=True)])
        for number in itertools.count(1):
            one = sequence.news.get()
            if one is not None and (number != 3 or self.switches.streaming != "loses_a_token"):
                held.append(one)
            if held and (one is None or (len(held) >= self.switches.tokens_per_chunk and not sequence.stop)):
                text = decoder.decode(b"".join(model.VOCABULARY[one.token] for one in held))
                yield self._event(held, sequence.text if sequence.stop else text)
                held = []
            if one is None:
                break
        yield self._event([], "" if sequence.stop else decoder.decode(b"", final=True), sequence.finish_reason)
        if (self.body.get("stream_options") or {}).get("include_usage"):
            yield self._document([], usage=True)
        yield "[DONE]"

    def _event(self, held: list[Emitted], text: str, finish_reason: str | None = None) -> dict[str, Any]:
        choice = self._choice(text, held, finish_reason)
        return self._document([choice], ids=[one.token for one in held])

    def _document(
        self, choices: list[dict[str, Any]], *, usage: bool = False, ids: list[int] | None = None
    ) -> dict[str, Any]:
        switches, sequence = self.switches, self.sequence
        document: dict[str, Any] = {"id": "x", "object": "completion", "model": MODEL, "choices": choices}
        if switches.fingerprint is not None:
            document["system_fingerprint"] = switches.fingerprint
        if ids is not None and switches.ids == "return_tokens" and self.body.get("return_tokens"):
            document["tokens"] = ids
        if usage and switches.usage:
            prompt, reply = len(sequence.prompt), len(sequence.tokens)
            document["usage"] = {"prompt_tokens": prompt, "completion_tokens": reply, "total_tokens": prompt + reply}
            if switches.cached_shown == "usage":
                document["usage"]["prompt_tokens_details"] = {"cached_tokens": sequence.cached}
        if usage and switches.cached_shown == "timings":
            document["timings"] = {"cache_n": sequence.cached, "prompt_n": len(sequence.prompt) - sequence.cached}
        return document

    def _choice(
        self, text: str, tokens: list[Emitted], finish_reason: str | None, *, role: bool = False, begins: bool = False
    ) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0, "finish_reason": finish_reason, "logprobs": None}
        if self.chat:
            name = "delta" if self.body.get("stream") and self.switches.streaming != "ignored" else "message"
            choice[name] = {"role": "assistant", "content": text} if role or name == "message" else {"content": text}
        else:
            choice["text"] = text
        if self.top is not None and tokens:
            choice["logprobs"] = (
                {"content": [*map(self._entry, tokens)]} if self.chat else self._columns(tokens, begins)
            )
        if self.switches.ids == "return_token_ids" and self.body.get("return_token_ids"):
            choice["token_ids"] = [one.token for one in tokens]
        if self.switches.ids == "return_meta_info" and self.body.get("return_meta_info"):
            triples = [[self._shown(one.logprob), one.token, None] for one in tokens]
            choice["meta_info"] = {"output_token_logprobs": triples}
        return choice

    def _name(self, token: int) -> str:
        if self.switches.ids == "return_tokens_as_token_ids" and self.body.get("return_tokens_as_token_ids"):
            return f"token_id:{token}"
        return model.decode([token])

    def _shown(self, logprob: float) -> Any:
        return self.switches.logprob_shown(logprob)

    def _entry(self, one: Emitted) -> dict[str, Any]:
        return {
            **self._named(one.token, one.logprob),
            "top_logprobs": [self._named(*pair) for pair in one.top[: self.top]],
        }

    def _named(self, token: int, logprob: float) -> dict[str, Any]:
        name = self._name(token)
        raw = name.encode() if name.startswith("token_id:") else model.VOCABULARY[token]
        ids = {"id": token} if self.switches.ids == "entries" else {}
        return {
            **ids,
            "token": name,
            "logprob": self._shown(logprob),
            "bytes": list(raw) if self.switches.bytes else None,
        }

    def _columns(self, tokens: list[Emitted], begins: bool) -> dict[str, Any]:
        names = [self._name(one.token) for one in tokens]
        values = [self._shown(one.logprob) if one.top else None for one in tokens]
        tops = [{self._name(token): lp for token, lp in one.top[: self.top]} if one.top else None for one in tokens]
        if begins and self.switches.begins_with is not None:
            names, values, tops = [self.switches.begins_with, *names], [None, *values], [None, *tops]
        offsets = [sum(map(len, names[:index])) for index in range(len(names))]
        return {"tokens": names, "token_logprobs": values, "top_logprobs": tops, "text_offset": offsets}

    def _scored(self) -> list[Emitted]:
        """The prompt's tokens, each as the model sees it after those before it; the first has none before it."""
        prompt, state = self.prompt, model.start(self.prompt[:1])
        found = [Emitted(prompt[0], 0.0, [], 1)]
        for last, token in itertools.pairwise(prompt):
            row = model.logprobs(state, last)
            found.append(Emitted(token, dict(row).get(token, -12.5), row, 1))
            state = model.advance(state, token)
        return found

    def _prompt_logprobs(self) -> list[Any]:
        """As vLLM: at each place its own token first, then the best; nothing for the first of all."""
        scored = self._scored()
        return [None] + [
            {
                str(token): {"logprob": self._shown(logprob), "decoded_token": self._name(token)}
                for token, logprob in [(one.token, one.logprob), *one.top[: int(self.body["prompt_logprobs"])]]
            }
            for one in scored[self.switches.begins_with is None :]
        ]


@pytest.fixture
def open_scripted() -> Iterator[Callable[..., ScriptedServer]]:
    """``open_scripted(**switches)``: a server that serves until the test ends."""
    with ExitStack() as stack:
        yield lambda **switches: stack.enter_context(ScriptedServer(Switches(**switches)))
