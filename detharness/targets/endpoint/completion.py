"""One request as either API takes it, and its reply from whole documents or from the chunks of a stream.

A chunk is not a token: it may hold none, one or many. Nothing counts as an answer that the server did not finish.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NoReturn

import orjson

from detharness.targets.endpoint.headers import Secrets
from detharness.targets.endpoint.http_client import server_message
from detharness.targets.endpoint.json_values import at, count, text
from detharness.targets.endpoint.tokens import ID_SOURCES, ids_of_entries, read_entries, read_ids
from detharness.targets.generation import GenerationError
from detharness.targets.serving import Api, ServedReply, ServedRequest, ServedToken

PATHS: Mapping[Api, str] = {"chat": "/chat/completions", "completions": "/completions"}

ID_FIELDS = ("return_token_ids", "return_tokens", "return_meta_info")
"""The names by which a request asks for token ids (vLLM and SGLang; llama.cpp; SGLang).

A fourth, vLLM's older ``return_tokens_as_token_ids``, puts ids in the place of every token's text. Whoever wants it
gives it as a further field.
"""

_UNFINISHED = frozenset({"abort", "error"})  # The server gave up; what text there is, is not the model's answer.
_CACHED = (
    ("usage", "prompt_tokens_details", "cached_tokens"),
    ("timings", "cache_n"),  # llama.cpp
    ("usage", "prompt_cache_hit_tokens"),  # DeepSeek
)


def request_body(api: Api, model: str, request: ServedRequest) -> dict[str, Any]:
    """The JSON that asks for ``request``. What stands at its default is not sent, for a server may not know it."""
    given = (request.messages is not None, request.prompt is not None, request.token_ids is not None)
    if sum(given) != 1 or given[0] != (api == "chat"):
        raise ValueError(f"a request to the {api} API holds messages (chat), or a prompt or token ids (completions)")
    prompt = request.prompt if request.token_ids is None else list(request.token_ids)
    chosen = {
        "messages": None if request.messages is None else list(request.messages),
        "prompt": prompt,
        "top_p": None if request.top_p == 1.0 else request.top_p,
        "top_k": request.top_k or None,
        "min_p": request.min_p or None,
        "stop": list(request.stop) or None,
        "ignore_eos": request.ignore_eos or None,
        "seed": request.seed,
        "cache_salt": request.cache_salt,
        "stream_options": {"include_usage": True} if request.stream else None,
        **_logprobs(api, request.logprobs),
        **dict.fromkeys(ID_FIELDS, request.token_ids_back or None),
    }
    return {
        "model": model,
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "stream": request.stream,
        **{name: value for name, value in chosen.items() if value is not None},
        **request.fields,
    }


def _logprobs(api: Api, best: int | None) -> dict[str, Any]:
    if best is None or api == "completions":
        return {"logprobs": best}
    return {"logprobs": True, "top_logprobs": best or None}


class Assembly:
    """A reply as its documents come: one whole one, or those of a stream."""

    def __init__(self, api: Api, secrets: Secrets, *, stream: bool) -> None:
        self._api = api
        self._secrets = secrets
        self._stream = stream
        self._texts: list[str] = []
        self._reasoning: list[str] = []
        self._entries: list[ServedToken] = []
        self._entries_missing = False
        self._ids: dict[str, list[int] | None] = {source: [] for source in ID_SOURCES[:-1]}
        self._finish_reason: str | None = None
        self._counts: dict[str, int | None] = {}
        self._fingerprint: str | None = None
        self._chunks = 0
        self._ended = False

    def end(self) -> None:
        """The server said that nothing more comes."""
        self._ended = True

    def broken(self, said: bytes) -> NoReturn:
        """An event of a stream tells of an error."""
        _bad(f"the server answered with an error: {self._secrets.quote(server_message(said))}", retriable=True)

    def add(self, document: Any) -> bool:
        """Take one document; whether it held text or ids. GenerationError "bad_response" for what is no completion."""
        choices = at(document, "choices")
        if at(document, "error") or at(document, "object") == "error":
            self.broken(orjson.dumps(document))
        if not isinstance(choices, list):
            _bad("the reply is not a completion: it has no list of choices")
        self._count(document)
        if self._stream and not choices:
            return False
        if len(choices) != 1:
            _bad(f"the reply has {len(choices)} choices, and one was asked for")
        choice = choices[0] if isinstance(choices[0], dict) else {}
        return self._take(document, choice)

    def reply(self) -> ServedReply:
        """What came. GenerationError "bad_response" where it is not all: a stream that ended without an end."""
        if self._stream and not self._ended and self._finish_reason is None:
            _bad("the stream ended before the reply did: no finish_reason and no [DONE]", retriable=True)
        tokens = tuple(self._entries)
        if self._entries_missing or not self._is_all(len(tokens)):
            tokens = ()
        ids, by = self._best_ids(tokens)
        conceal = self._secrets.conceal_in_reply
        reply = ServedReply(
            text="".join(self._texts),
            reasoning="".join(self._reasoning) if self._reasoning else None,
            token_ids=ids,
            token_ids_by=by,
            tokens=tokens or None,
            finish_reason=self._finish_reason,
            prompt_tokens=self._counts.get("prompt_tokens"),
            completion_tokens=self._counts.get("completion_tokens"),
            cached_tokens=self._counts.get("cached_tokens"),
            fingerprint=None if self._fingerprint is None else conceal(self._fingerprint),
            chunks=self._chunks if self._stream else None,
        )
        return _concealed(reply, conceal)

    def _take(self, document: Mapping[str, Any], choice: Mapping[str, Any]) -> bool:
        content, reasoning = self._content(choice)
        finish_reason = choice.get("finish_reason")
        if not isinstance(finish_reason, str | None):
            _bad("the reply's finish_reason is neither a text nor null")
        if finish_reason in _UNFINISHED:
            _bad(f"the server broke the reply off (finish_reason {finish_reason!r})", retriable=True)
        self._finish_reason = finish_reason or self._finish_reason
        said = bool(content or reasoning)
        entries = read_entries(document, choice)
        self._entries += entries or ()
        self._entries_missing |= entries is None and said
        found = False
        for source, ids in self._ids.items():
            more = read_ids(document, choice, source)
            found |= bool(more)
            if more is None and said:
                self._ids[source] = None  # A part of the reply came without.
            elif ids is not None:
                ids += more or ()
        self._texts.append(content)
        self._reasoning += [reasoning] if reasoning is not None else ()
        self._chunks += said or found
        return said or found

    def _content(self, choice: Mapping[str, Any]) -> tuple[str, str | None]:
        """Text and reasoning of a choice; a null text is an empty one."""
        name = "text" if self._api == "completions" else "delta" if self._stream else "message"
        message = choice.get(name)
        if message is None and self._stream:  # The last chunk may hold the finish_reason alone.
            return "", None
        if name == "text":
            if not isinstance(message, str):
                _bad("the reply's choice has no text")
            return message, None
        if not isinstance(message, dict):
            _bad("the reply's choice has no message")
        content = message.get("content")
        if not isinstance(content, str | None):
            _bad("the reply's content is neither a text nor null")
        reasoning = [text(message.get(name)) for name in ("reasoning_content", "reasoning")]
        return content or "", next((part for part in reasoning if part is not None), None)

    def _count(self, document: Mapping[str, Any]) -> None:
        """What a document counts; of several, the last."""
        told = {name: count(at(document, "usage", name)) for name in ("prompt_tokens", "completion_tokens")}
        cached = [count(at(document, *path)) for path in _CACHED]
        told["cached_tokens"] = next((value for value in cached if value is not None), None)
        self._counts |= {name: value for name, value in told.items() if value is not None}
        self._fingerprint = text(document.get("system_fingerprint")) or self._fingerprint

    def _best_ids(self, tokens: tuple[ServedToken, ...]) -> tuple[tuple[int, ...] | None, str | None]:
        for source in ID_SOURCES:
            ids = ids_of_entries(tokens) if source == "logprobs" else self._ids[source]
            if ids and self._is_all(len(ids)):
                return tuple(ids), source
        return None, None

    def _is_all(self, found: int) -> bool:
        """Whether so many are those of all tokens. Servers count an end token, and not all of them show it."""
        tokens = self._counts.get("completion_tokens")
        return tokens is None or found == tokens or (found == tokens - 1 and self._finish_reason != "length")


def _concealed(reply: ServedReply, conceal: Callable[[str], str]) -> ServedReply:
    """A text that shows a secret of ours is shown without it, and without the tokens that spell it."""
    shown = conceal(reply.text)
    reasoning = None if reply.reasoning is None else conceal(reply.reasoning)
    if (shown, reasoning) == (reply.text, reply.reasoning):
        return reply
    return replace(reply, text=shown, reasoning=reasoning, tokens=None, token_ids=None, token_ids_by=None)


def _bad(sentence: str, *, retriable: bool = False) -> NoReturn:
    raise GenerationError("bad_response", sentence, retriable=retriable)
