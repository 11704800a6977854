"""Prompts of a server's probe: from files as for every target, or those that ship with it, as requests of its API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from importlib import resources
from pathlib import Path
from typing import Any

from detharness.errors import UsageError
from detharness.probes.prompt_files import PromptRow, read_prompts
from detharness.targets.serving import Api, Message, ServedRequest

_SAMPLING = frozenset(field.name for field in fields(ServedRequest))


@dataclass(frozen=True)
class Prompt:
    """One probed prompt: the request that asks it. ``text`` is what may be cut for a partial prefix, None for ids."""

    id: str
    request: ServedRequest

    @property
    def text(self) -> str | None:
        """The raw prompt, or the last text of the conversation."""
        if self.request.messages is None:
            return self.request.prompt
        content = self.request.messages[-1].get("content")
        return content if isinstance(content, str) else None

    @property
    def greedy(self) -> bool:
        """Whether its tokens are arg-maxes."""
        return self.request.temperature == 0.0

    def with_text(self, text: str) -> ServedRequest:
        """The same request with another text in the place of ``text``."""
        if self.request.messages is None:
            return replace(self.request, prompt=text)
        *before, last = self.request.messages
        return replace(self.request, messages=[*before, {**last, "content": text}])

    def as_record(self) -> dict[str, Any]:
        """What is asked, as plain values."""
        request = self.request
        return {
            "id": self.id,
            "messages": None if request.messages is None else [dict(message) for message in request.messages],
            "prompt": request.prompt,
            "token_ids": None if request.token_ids is None else list(request.token_ids),
            "temperature": request.temperature,
            "max_tokens": request.max_tokens,
            "seed": request.seed,
        }


def text_request(api: Api, text: str, *, max_tokens: int, temperature: float = 0.0) -> ServedRequest:
    """A request for a reply to ``text``: as a user's message, or as it is."""
    if api == "chat":
        messages: list[Message] = [{"role": "user", "content": text}]
        return ServedRequest(messages=messages, max_tokens=max_tokens, temperature=temperature)
    return ServedRequest(prompt=text, max_tokens=max_tokens, temperature=temperature)


def packaged_prompts() -> list[PromptRow]:
    """Six texts of about 20 to 900 tokens."""
    with resources.as_file(resources.files("detharness.probes") / "prompts" / "serving.jsonl") as path:
        return read_prompts(path)


def load_prompts(path: Path | None, api: Api, defaults: Mapping[str, Any], seed: int) -> tuple[Prompt, ...]:
    """The prompts of a file, or the packaged ones, as requests of ``api``."""
    return prompts_of(packaged_prompts() if path is None else read_prompts(path), api, defaults, seed)


def prompts_of(rows: Sequence[PromptRow], api: Api, defaults: Mapping[str, Any], seed: int) -> tuple[Prompt, ...]:
    """``rows`` as requests, ``defaults`` (max_tokens, temperature) under their own fields.

    A seed is sent only with a row that names one or that samples. UsageError for a row that this API cannot ask.
    """
    return tuple(_prompt(row, api, defaults, seed + index) for index, row in enumerate(rows))


def _prompt(row: PromptRow, api: Api, defaults: Mapping[str, Any], seed: int) -> Prompt:
    source = row.source
    if api == "chat" and source.kind == "token_ids":
        raise UsageError(f"{source.where}: token_ids are no conversation: use --api completions")
    if api == "completions" and source.kind == "messages":
        raise UsageError(f"{source.where}: messages need the chat API: leave --api out or use --api chat")
    base = text_request(api, "" if source.kind != "prompt" else source.value, max_tokens=1)
    if source.kind == "messages":
        base = replace(base, messages=source.value)
    elif source.kind == "token_ids":
        base = replace(base, prompt=None, token_ids=tuple(source.value))
    values = {**defaults, **row.sampling}
    sampled = values["temperature"] > 0
    own = {name: _value(value) for name, value in values.items() if name in _SAMPLING}
    fields_beside = {name: value for name, value in values.items() if name not in _SAMPLING and name != "seq_seed"}
    chosen_seed = values.get("seq_seed", seed if sampled else None)
    return Prompt(row.id, replace(base, **own, seed=chosen_seed, fields=fields_beside))


def _value(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
