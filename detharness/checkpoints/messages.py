"""Chat messages brought to the one form that templates are written for: text content, and arguments as objects."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from detharness.errors import RequestError


def normalise_messages(messages: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """Return plain copies of ``messages``, and a note for every change.

    Content that is null or missing becomes empty text; a list of text parts is joined with newlines, as servers do.
    Tool call arguments given as JSON text become the object. Images and other parts, an absent role, and values that
    JSON cannot hold raise ``RequestError`` naming the message (counted from 1).
    """
    if not isinstance(messages, list | tuple) or not messages:
        raise RequestError("a chat needs a list of at least one message, each with 'role' and 'content'")
    result, notes = [], []
    for number, message in enumerate(messages, start=1):
        where = f"message {number}"
        if not isinstance(message, Mapping):
            raise RequestError(f"{where} must be an object with 'role' and 'content', got {type(message).__name__}")
        plain = _plain(message, where)
        if not isinstance(plain.get("role"), str):
            raise RequestError(f"{where} must have a 'role' that is text, got {plain.get('role')!r}")
        content = plain.get("content")
        if not isinstance(content, str):
            plain["content"], note = _text(content, where)
            notes.append(note)
        if plain.get("tool_calls") is not None:
            plain["tool_calls"] = _tool_calls(plain["tool_calls"], where)
        result.append(plain)
    return result, tuple(notes)


def arguments_as_text(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return copies of normalised messages with every tool call's arguments as JSON text."""
    result: list[dict[str, Any]] = json.loads(json.dumps(messages))
    for message in result:
        for call in message.get("tool_calls") or ():
            function = call.get("function", call)
            if "arguments" in function:
                function["arguments"] = json.dumps(function["arguments"], ensure_ascii=False)
    return result


def _plain(message: Mapping[str, Any], where: str) -> dict[str, Any]:
    try:
        text = json.dumps(dict(message), ensure_ascii=False, allow_nan=False)
        text.encode()
        plain: dict[str, Any] = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError(f"{where} holds a value that JSON cannot hold ({error}): use plain values") from None
    return plain


def _text(content: Any, where: str) -> tuple[str, str]:
    if content is None:
        return "", f"{where} has no content: rendered as empty text"
    if not isinstance(content, list):
        raise RequestError(f"{where}: content must be text or a list of text parts, got {type(content).__name__}")
    texts = []
    for index, part in enumerate(content, start=1):
        kind = part.get("type", "text") if isinstance(part, dict) else "text"
        if kind != "text":
            raise RequestError(
                f"{where}, part {index} is of type {kind!r}, and only text can be given to this model: leave it out"
            )
        text = part.get("text") if isinstance(part, dict) else part
        if not isinstance(text, str):
            raise RequestError(f"{where}, part {index} must hold text, got {type(text).__name__}")
        texts.append(text)
    return "\n".join(texts), f"{where}: its list of text parts became one text, joined with newlines"


def _tool_calls(calls: Any, where: str) -> list[Any]:
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise RequestError(f"{where}: tool_calls must be a list of objects")
    for index, call in enumerate(calls, start=1):
        function = call.get("function", call)
        if not isinstance(function, dict):
            raise RequestError(f"{where}, tool call {index}: 'function' must be an object")
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments)
            except ValueError as error:
                raise RequestError(
                    f"{where}, tool call {index}: the arguments are not valid JSON ({error}): give a JSON object"
                ) from None
            function["arguments"] = arguments
        if arguments is not None and not isinstance(arguments, dict):
            raise RequestError(f"{where}, tool call {index}: the arguments must be a JSON object")
    return calls
