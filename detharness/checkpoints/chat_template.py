"""Chat templates: from a conversation to the exact prompt a model was trained on, the same on every day.

Real jinja2 in its sandbox, in a process of its own (``template_worker``). There is no fallback: a model without a
template has none, and a template that fails is an error, never another template.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf

from detharness.checkpoints.gguf_metadata import MetadataReader
from detharness.checkpoints.messages import arguments_as_text, normalise_messages
from detharness.checkpoints.model_files import reading, refuse_lfs_pointer, require_file
from detharness.checkpoints.template_process import TemplateProcess
from detharness.checkpoints.tokenizer import Tokenizer, read_optional_json, special_token_text
from detharness.errors import CheckpointError, RequestError
from detharness.records.digests import sha256_bytes

DEFAULT_DATE = datetime.date(2024, 7, 26)
"""What ``strftime_now`` says unless a date is given: the one Llama 3.1 falls back to."""

OUTPUT_LIMIT = 4 * 2**20
"""Characters a template may write."""

_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_GGUF_SPECIAL_TOKENS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "sep_token": "seperator_token_id",  # The format spells it so.
    "pad_token": "padding_token_id",
}


@dataclass(frozen=True)
class RenderedPrompt:
    """A conversation as the model sees it.

    date: the ISO date that ``strftime_now`` told the template, None if it was not asked. notes: what was changed in
    the messages.
    """

    text: str
    token_ids: tuple[int, ...]
    date: str | None
    notes: tuple[str, ...]


@dataclass(frozen=True)
class ChatTemplate:
    """A jinja2 chat template.

    origin: the file and place it came from. special_tokens: names such as ``bos_token`` -> text, as the template sees
    them. notes: what else was there and was not used.
    """

    source: str
    origin: str
    special_tokens: Mapping[str, str]
    notes: tuple[str, ...] = ()
    process: TemplateProcess = field(default_factory=TemplateProcess, repr=False, compare=False)

    @property
    def digest(self) -> str:
        """SHA-256 of the template's text."""
        return sha256_bytes(self.source.encode())

    def render(
        self, messages: Sequence[Mapping[str, Any]], tokenizer: Tokenizer, *, date: datetime.date | None = None
    ) -> RenderedPrompt:
        """Render ``messages`` with the generation prompt, and tokenize without adding special tokens.

        ``date``: what ``strftime_now`` says, at midnight; ``DEFAULT_DATE`` if None. Never the clock. A default system
        turn that the template puts in is kept. RequestError for messages the template cannot render;
        CheckpointError for a template that is broken, does what the sandbox forbids, or passes a limit (10 seconds,
        1 GiB of memory, 4 Mi characters).
        """
        plain, notes = normalise_messages(messages)
        frozen = date or DEFAULT_DATE
        answer = self._ask(plain, frozen)
        if answer.get("error") == "failed" and any(message.get("tool_calls") for message in plain):
            # Some templates join the arguments to a text and cannot take an object.
            second = self._ask(arguments_as_text(plain), frozen)
            if "error" not in second:
                answer, notes = second, (*notes, "the template takes tool call arguments as JSON text")
        if "error" in answer:
            raise self._error(answer)
        text = answer["text"]
        token_ids = tokenizer.encode_rendered(text)
        if not token_ids:
            raise RequestError(f"the chat template ({self.origin}) renders these messages to nothing: use a raw prompt")
        return RenderedPrompt(text, token_ids, frozen.isoformat() if answer["asked_date"] else None, notes)

    def _ask(self, messages: list[dict[str, Any]], date: datetime.date) -> dict[str, Any]:
        context = {
            **self.special_tokens,
            "messages": messages,
            "tools": None,
            "documents": None,
            "add_generation_prompt": True,
        }
        return self.process.ask(
            {
                "template": self.source,
                "context": context,
                "date": date.isoformat(),
                "output_limit": OUTPUT_LIMIT,
            }
        )

    def _error(self, answer: Mapping[str, Any]) -> CheckpointError | RequestError:
        place = self.origin if answer["line"] is None else f"{self.origin}, line {answer['line']}"
        message = _printable(answer["message"])
        raw = "give a raw prompt or another model"
        match answer["error"]:
            case "refused":
                return RequestError(f"the chat template ({place}) refuses these messages: {message}")
            case "failed":
                return RequestError(f"the chat template ({place}) fails on these messages ({message}): {raw}")
            case "syntax":
                return CheckpointError(f"the chat template ({place}) is not valid jinja2 ({message}): {raw}")
            case "forbidden":
                return CheckpointError(f"the chat template ({place}) does what the sandbox forbids ({message}): {raw}")
            case "time":
                reason = f"does not end within {self.process.time_limit:g} seconds"
            case "size":
                reason = f"writes more than {OUTPUT_LIMIT} characters"
            case "memory":
                reason = "needs more than 1 GiB of memory"
            case _:
                reason = "crashed the process that renders it"
        return CheckpointError(f"the chat template ({place}) {reason}: {raw}")


def _printable(message: str) -> str:
    """A stranger's message on one short line, without control characters."""
    text = "".join(char if char.isprintable() else " " for char in message)
    text = " ".join(text.split())
    return text if len(text) <= 300 else text[:300] + "…"


def load_template_folder(folder: Path) -> ChatTemplate | None:
    """Find a folder's template: ``chat_template.jinja``, else ``chat_template`` in ``tokenizer_config.json``.

    A list of named templates gives the one called "default". None if there is no template. CheckpointError for
    damaged files, or a list without a default.
    """
    config_path = folder / "tokenizer_config.json"
    config = read_optional_json(config_path, "it names special tokens")
    special = read_optional_json(folder / "special_tokens_map.json", "it names special tokens")
    tokens = {
        name: text
        for name in _SPECIAL_TOKENS
        if (text := special_token_text(config.get(name)) or special_token_text(special.get(name))) is not None
    }
    path = folder / "chat_template.jinja"
    stated = config.get("chat_template")
    if path.exists() or path.is_symlink():
        source = _read_template(path)
        notes = ["chat template: chat_template.jinja"]
        if stated is not None and stated != source:
            notes.append("chat template: tokenizer_config.json holds another one, which is not used")
        return ChatTemplate(source, str(path), tokens, tuple(notes))
    if stated is None:
        return None
    origin = f"chat_template of {config_path}"
    if isinstance(stated, str):
        return ChatTemplate(stated, origin, tokens, ("chat template: tokenizer_config.json",))
    named = _named_templates(stated, origin)
    if "default" not in named:
        raise CheckpointError(
            f"{origin} names {', '.join(map(repr, named))} but no 'default': name one of them 'default'"
        )
    others = [name for name in named if name != "default"]
    notes = ["chat template: 'default' of tokenizer_config.json"]
    if others:
        notes.append(f"chat template: not used: {', '.join(map(repr, others))}")
    return ChatTemplate(named["default"], f"'default' in {origin}", tokens, tuple(notes))


def _read_template(path: Path) -> str:
    require_file(path, "it is the chat template")
    with reading(path):
        content = path.read_bytes()
    refuse_lfs_pointer(path, content[:64])
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise CheckpointError(f"{path} is not UTF-8 text: fetch the file again") from None


def _named_templates(stated: Any, origin: str) -> dict[str, str]:
    if isinstance(stated, list) and all(
        isinstance(item, dict) and isinstance(item.get("name"), str) and isinstance(item.get("template"), str)
        for item in stated
    ):
        return {item["name"]: item["template"] for item in stated}
    raise CheckpointError(
        f"{origin} must be text or a list of objects with 'name' and 'template': fetch the file again"
    )


def load_template_gguf(reader: gguf.GGUFReader) -> ChatTemplate | None:
    """``tokenizer.chat_template`` of a GGUF file, or None; CheckpointError for damaged metadata."""
    metadata = MetadataReader(reader)
    source = metadata.string("tokenizer.chat_template")
    if source is None:
        return None
    tokens = {}
    for name, key in _GGUF_SPECIAL_TOKENS.items():
        text = metadata.token_text(key)
        if text is not None:
            tokens[name] = text
    notes = ["chat template: metadata of the GGUF file (the original repository may hold another one)"]
    others = metadata.strings("tokenizer.chat_templates")
    if others:
        notes.append(f"chat template: not used: {', '.join(map(repr, others))}")
    return ChatTemplate(source, f"tokenizer.chat_template of {metadata.where}", tokens, tuple(notes))
