"""Prompts from files: JSONL rows or plain text, one prompt a line. Every refusal names file and line.

A JSONL row is ``{"id"?, "prompt": str | "messages": [...] | "token_ids": [...], sampling fields?}``. ``prompt`` is
raw text; ``messages`` go through the checkpoint's chat template; ``token_ids`` are taken as they are.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from importlib import resources
from pathlib import Path
from typing import Any, Protocol

from detharness.errors import DetharnessError, UsageError
from detharness.probes.scenario import Probe
from detharness.records.jsonl import JsonlRow, read_jsonl
from detharness.targets.protocol import SamplingParams

SOURCES = ("prompt", "messages", "token_ids")
# What a probe decides itself: logprobs are always taken, and one reply is compared with one.
_OWN = ("n", "logprobs", "processed_logprobs", "prompt_logprobs")
SAMPLING_FIELDS = tuple(field.name for field in fields(SamplingParams) if field.name not in _OWN)

LONGEST_TEXT = 2**22  # Beyond every context, and seconds of tokenizing; a file that is no prompt would take minutes.
TOP_LOGPROBS = 2  # The best two give the margin where logits are not captured.
_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class Prompting(Protocol):
    """What turns prompts into tokens: a part of every target whose tokenizer is on this side."""

    @property
    def context_length(self) -> int:
        """Tokens the model's context holds, prompt and reply together."""

    @property
    def vocab_size(self) -> int:
        """Ids below this are real tokens."""

    def tokenize(self, text: str) -> tuple[int, ...]:
        """Token ids of raw text."""

    def render_chat(self, messages: Sequence[dict[str, Any]]) -> tuple[int, ...]:
        """Token ids of a conversation rendered by the model's chat template."""


@dataclass(frozen=True)
class PromptSource:
    """Where a prompt's tokens come from: exactly one of text, messages, token ids. ``where`` names file and line."""

    kind: str
    value: Any
    where: str

    def tokens(self, target: Prompting) -> tuple[int, ...]:
        """Token ids under the target's tokenizer; UsageError if there are none or an id is outside its vocabulary."""
        if self.kind == "prompt":
            if len(self.value) > LONGEST_TEXT:
                raise UsageError(
                    f"{self.where}: the prompt has {len(self.value)} characters, the most is {LONGEST_TEXT}"
                )
            ids = target.tokenize(self.value)
        elif self.kind == "messages":
            ids = self._rendered(target)
        else:
            ids = tuple(self.value)
        if not ids:
            raise UsageError(f"{self.where}: the prompt is empty: give it at least one token")
        vocab = target.vocab_size
        outside = [token for token in ids if not 0 <= token < vocab]
        if outside:
            raise UsageError(f"{self.where}: token id {outside[0]} is outside the model's vocabulary of {vocab}")
        return ids

    def _rendered(self, target: Prompting) -> tuple[int, ...]:
        try:
            return target.render_chat(self.value)
        except DetharnessError as error:
            raise UsageError(f"{self.where}: {error}") from error


@dataclass(frozen=True)
class PromptRow:
    """One prompt before tokenization."""

    id: str
    source: PromptSource
    sampling: Mapping[str, Any]


def read_source(row: Mapping[str, Any], where: str) -> PromptSource:
    """The one prompt field of a row; UsageError for none, several, a wrong type, or an empty one."""
    given = [name for name in SOURCES if name in row]
    if len(given) != 1:
        raise UsageError(f"{where}: give exactly one of {', '.join(SOURCES)}, found {', '.join(given) or 'none'}")
    kind = given[0]
    value = row[kind]
    if kind == "prompt":
        if not isinstance(value, str):
            raise UsageError(f"{where}: prompt must be text, got {type(value).__name__}")
        empty = not value.strip()
    elif kind == "messages":
        if not isinstance(value, list) or any(not isinstance(m, dict) or "role" not in m for m in value):
            raise UsageError(f"{where}: messages must be a list of objects with role and content")
        empty = not value
    else:
        if not isinstance(value, list) or any(isinstance(t, bool) or not isinstance(t, int) for t in value):
            raise UsageError(f"{where}: token_ids must be a list of whole numbers")
        empty = not value
    if empty:
        raise UsageError(f"{where}: the prompt is empty: give it at least one token")
    return PromptSource(kind, value, where)


def read_sampling(row: Mapping[str, Any], other_fields: tuple[str, ...], where: str) -> dict[str, Any]:
    """The sampling fields of a row; UsageError for a field that is neither these nor one of ``other_fields``."""
    known = (*other_fields, *SAMPLING_FIELDS)
    for name in row:
        if name in _OWN:
            raise UsageError(f"{where}: {name} is set by the probe itself: remove the field")
        if name not in known:
            raise UsageError(f"{where}: unknown field {name!r}: known are {', '.join(known)}")
    values = {name: row[name] for name in SAMPLING_FIELDS if name in row}
    sampling_params(values, SamplingParams(), where)
    return values


def sampling_params(values: Mapping[str, Any], defaults: SamplingParams, where: str) -> SamplingParams:
    """``values`` over ``defaults``, with the logprobs every comparison needs; UsageError names ``where``."""
    try:
        return replace(SamplingParams.from_mapping(values, defaults), logprobs=TOP_LOGPROBS)
    except DetharnessError as error:
        raise UsageError(f"{where}: {error}") from error


def read_prompts(path: Path) -> list[PromptRow]:
    """Read a prompts file: JSONL when its name ends in .jsonl or its first line opens an object, else plain text."""
    refuse_special_file(path)
    lines = _text_lines(path)
    if path.suffix == ".jsonl" or (lines and lines[0][1].lstrip().startswith("{")):
        rows = [_prompt_row(row, f"{path}, line {row.line}") for row in read_jsonl(path)]
    else:
        rows = [
            PromptRow(f"line-{number}", PromptSource("prompt", line, f"{path}, line {number}"), {})
            for number, line in lines
        ]
    if not rows:
        raise UsageError(f"{path} holds no prompt: give it at least one line")
    seen: dict[str, str] = {}
    for row in rows:
        if row.id in seen:
            raise UsageError(f"{row.source.where}: the id {row.id!r} stands already in {seen[row.id]}")
        seen[row.id] = row.source.where
    return rows


def packaged_prompts() -> list[PromptRow]:
    """The demonstration prompts that ship with the package, picked for small top-2 margins."""
    with resources.as_file(resources.files("detharness.probes") / "prompts" / "demo.jsonl") as path:
        return read_prompts(path)


def tokenize_prompts(rows: list[PromptRow], target: Prompting, defaults: SamplingParams, seed: int) -> list[Probe]:
    """Rows as probes: ``defaults`` under each row's own fields, and a noise key from ``seed`` where it has none."""
    limit = target.context_length
    probes = []
    for index, row in enumerate(rows):
        where = row.source.where
        params = sampling_params(row.sampling, replace(defaults, seq_seed=seed + index), where)
        ids = row.source.tokens(target)
        if len(ids) + params.max_tokens > limit:
            raise UsageError(
                f"{where}: {len(ids)} prompt tokens and a reply of {params.max_tokens} do not fit the model's context "
                f"of {limit}: shorten the prompt or lower --max-tokens"
            )
        probes.append(Probe(row.id, ids, params))
    return probes


def refuse_special_file(path: Path) -> None:
    """UsageError for a pipe or a device, which may hold its reader for ever and cannot be read twice."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return  # The reader says what is wrong.
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise UsageError(f"{path} is a pipe or a device: write it to a regular file first")


def _text_lines(path: Path) -> list[tuple[int, str]]:
    try:
        text = path.read_bytes().decode("utf-8")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise UsageError(f"{path}, line {line}: not valid UTF-8") from None
    if text.startswith("\ufeff"):
        raise UsageError(f"{path}, line 1: starts with a byte order mark")
    numbered = enumerate((line.rstrip("\r") for line in text.split("\n")), start=1)
    return [(number, line) for number, line in numbered if line.strip()]


def _prompt_row(row: JsonlRow, where: str) -> PromptRow:
    name = row.value.get("id", f"line-{row.line}")
    if not isinstance(name, str) or not _ID.fullmatch(name):
        raise UsageError(f"{where}: id must be 1 to 64 letters, digits, dots, dashes or underscores, got {name!r}")
    source = read_source(row.value, where)
    return PromptRow(name, source, read_sampling(row.value, ("id", *SOURCES), where))
