"""The chat completion of the OpenAI API as plain data: the body that asks, and the reply read strictly from bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import orjson

from detharness.targets.endpoint.http_client import server_message
from detharness.targets.generation import GenerationError, GenerationRequest, Reply

_UNFINISHED = frozenset({"abort", "error"})  # The server gave up; what text there is, is not the model's answer.


def request_body(model: str, request: GenerationRequest, extra: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON that asks for ``request``. What stands at its default is not sent, for a server may not know it.

    The reply is asked for in one piece: one JSON document is whole or does not parse, wherever it is cut, and it holds
    usage, logprobs and token ids in one place. A stream may end early in ways that look like an end.
    """
    body: dict[str, Any] = {
        "model": model,
        "messages": list(request.messages),
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "stream": False,
    }
    chosen = {
        "top_p": None if request.top_p == 1.0 else request.top_p,
        "top_k": request.top_k or None,
        "min_p": request.min_p or None,
        "stop": list(request.stop) or None,
        "seed": request.seed,
    }
    return {**body, **{name: value for name, value in chosen.items() if value is not None}, **extra}


def read_reply(body: bytes, quote: Callable[[str], str]) -> tuple[Reply, str | None]:
    """The reply in ``body``, and the server's fingerprint if it gives one.

    quote: makes what the server says fit to be shown. GenerationError "bad_response" for anything that is not one
    choice with a text or null.
    """
    try:
        value = orjson.loads(body)  # Strict: no NaN, no infinity, no lone surrogates.
    except orjson.JSONDecodeError:
        raise GenerationError("bad_response", "the reply is not whole JSON", retriable=True) from None
    choices = value.get("choices") if isinstance(value, dict) else None
    if not isinstance(choices, list):
        if isinstance(value, dict) and value.get("error"):
            _bad(f"the server answered with an error: {quote(server_message(body))}", retriable=True)
        _bad("the reply is not a chat completion: it has no list of choices")
    if len(choices) != 1:
        _bad(f"the reply has {len(choices)} choices, and one was asked for")
    choice = choices[0] if isinstance(choices[0], dict) else {}
    message = choice.get("message")
    if not isinstance(message, dict):
        _bad("the reply's choice has no message")
    text, finish_reason = message.get("content"), choice.get("finish_reason")
    if not isinstance(text, str | None):
        _bad("the reply's content is neither a text nor null")
    if not isinstance(finish_reason, str | None):
        _bad("the reply's finish_reason is neither a text nor null")
    if finish_reason in _UNFINISHED:
        _bad(f"the server broke the reply off (finish_reason {finish_reason!r})", retriable=True)
    reasoning = [message.get(name) for name in ("reasoning_content", "reasoning")]
    usage = value.get("usage")
    fingerprint = value.get("system_fingerprint")
    reply = Reply(
        text=text,
        reasoning=next((part for part in reasoning if isinstance(part, str)), None),
        token_ids=_token_ids(choice.get("token_ids")),
        finish_reason=finish_reason,
        prompt_tokens=_count(usage, "prompt_tokens"),
        completion_tokens=_count(usage, "completion_tokens"),
        logprobs=_logprobs(choice.get("logprobs")),
    )
    return reply, fingerprint if isinstance(fingerprint, str) else None


def _bad(sentence: str, *, retriable: bool = False) -> NoReturn:
    raise GenerationError("bad_response", sentence, retriable=retriable)


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


def _count(usage: object, name: str) -> int | None:
    value = usage.get(name) if isinstance(usage, dict) else None
    return value if _is_count(value) else None


def _token_ids(value: object) -> tuple[int, ...] | None:
    """The ids, only if every one is a plain number."""
    return tuple(value) if isinstance(value, list) and all(map(_is_count, value)) else None


def _logprobs(value: object) -> tuple[float, ...] | None:
    """The chosen tokens' logprobs, only if every token has one."""
    entries = value.get("content") if isinstance(value, dict) else None
    if not isinstance(entries, list):
        return None
    found = [entry.get("logprob") if isinstance(entry, dict) else None for entry in entries]
    numbers = [float(one) for one in found if isinstance(one, int | float) and not isinstance(one, bool)]
    return tuple(numbers) if len(numbers) == len(found) else None
