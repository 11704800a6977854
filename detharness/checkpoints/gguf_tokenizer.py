"""The tokenizer inside a GGUF file, rebuilt as the ``tokenizer.json`` it came from.

GGUF stores tokens, merges and the name of a pre-tokenizer, but not its rules. Names whose rules are not known
exactly are refused: a near miss would give other ids without an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import gguf

from detharness.checkpoints.gguf_metadata import MetadataReader
from detharness.checkpoints.gguf_pretokenizers import PRETOKENIZERS, Pretokenizer
from detharness.checkpoints.tokenizer import Tokenizer
from detharness.errors import CheckpointError

_FOLDER = "give the model's folder with tokenizer.json instead"


class _TokenType(IntEnum):
    """``tokenizer.ggml.token_type``, as llama.cpp numbers it."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


_SPECIAL = (_TokenType.CONTROL, _TokenType.UNKNOWN)


def load_tokenizer_gguf(reader: gguf.GGUFReader) -> Tokenizer:
    """Build the tokenizer from the metadata of an open GGUF file.

    Control tokens become special (parsed in text, left out of replies), user-defined ones are parsed and printed, and
    padding rows (unused, named ``[PAD<id>]``) are no tokens. Missing, contradictory or unsupported metadata raises
    ``CheckpointError``.
    """
    metadata = MetadataReader(reader)
    where = metadata.where
    name, rules = _rules(metadata)
    tokens = _strings(metadata, "tokens")
    vocabulary: dict[str, int] = {}
    added = []
    for index, (token, kind) in enumerate(zip(tokens, _types(metadata, len(tokens)), strict=True)):
        if kind == _TokenType.UNUSED and token == f"[PAD{index}]":
            continue
        if token in vocabulary:
            raise CheckpointError(
                f"{where}: tokens {vocabulary[token]} and {index} are both {token!r}: use another conversion of "
                "this model"
            )
        vocabulary[token] = index
        if kind in _SPECIAL or kind == _TokenType.USER_DEFINED:
            added.append(_added_token(token, index, special=kind in _SPECIAL))
    post_processor, notes = _post_processor(metadata, rules, tokens)
    content = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": rules.normalizer,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": list(rules.steps)},
        "post_processor": post_processor,
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "vocab": vocabulary,
            "merges": [_pair(merge, where) for merge in _strings(metadata, "merges")],
            "ignore_merges": rules.ignores_merges,
        },
    }
    ends: dict[str, str] = {}
    for key in ("eos_token_id", "eot_token_id"):
        end = metadata.token_id(key, len(tokens))
        if end is not None:
            ends.setdefault(tokens[end], f"tokenizer.ggml.{key}")
    notes.insert(0, f"tokenizer: metadata of the GGUF file, pre-tokenizer {name!r}")
    return Tokenizer(content, where=where, eos_tokens=ends, notes=notes)


def _rules(metadata: MetadataReader) -> tuple[str, Pretokenizer]:
    where = metadata.where
    model = metadata.string("tokenizer.ggml.model")
    if model is None:
        raise CheckpointError(f"{where} holds no tokenizer (tokenizer.ggml.model is missing): {_FOLDER}")
    if model != "gpt2":
        raise CheckpointError(
            f"{where} holds a tokenizer of the kind {model!r}, and from GGUF only byte-level BPE ('gpt2') is read "
            f"exactly: {_FOLDER}"
        )
    name = metadata.string("tokenizer.ggml.pre")
    if name is None or name == "default":
        raise CheckpointError(
            f"{where} does not say how its tokenizer splits text (tokenizer.ggml.pre is {name or 'missing'}), and a "
            f"guess may give wrong ids: convert the model again with a current llama.cpp, or {_FOLDER}"
        )
    if name not in PRETOKENIZERS:
        raise CheckpointError(
            f"{where}: the pre-tokenizer {name!r} (tokenizer.ggml.pre) is not supported (supported: "
            f"{', '.join(PRETOKENIZERS)}): {_FOLDER}"
        )
    return name, PRETOKENIZERS[name]


def _strings(metadata: MetadataReader, key: str) -> list[str]:
    values = metadata.strings(f"tokenizer.ggml.{key}")
    if values is None:
        raise CheckpointError(
            f"{metadata.where}: tokenizer.ggml.{key} is missing: use another conversion of this model"
        )
    return values


def _types(metadata: MetadataReader, count: int) -> Sequence[int]:
    """The type of every token. Without it special tokens would be split into letters, so it must be there."""
    types = metadata.numbers("tokenizer.ggml.token_type")
    if types is None or len(types) != count or not set(types) <= set(_TokenType):
        raise CheckpointError(
            f"{metadata.where}: tokenizer.ggml.token_type must give each of the {count} tokens a type from 1 to 6: use "
            "another conversion of this model"
        )
    return types


def _added_token(token: str, index: int, *, special: bool) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": index, "content": token, **flags, "special": special}


def _pair(merge: str, where: str) -> tuple[str, str]:
    pieces = merge.split(" ")
    if len(pieces) != 2 or not all(pieces):
        raise CheckpointError(
            f"{where}: the merge {merge!r} is not two pieces with a space between: use another conversion of this model"
        )
    return pieces[0], pieces[1]


def _post_processor(
    metadata: MetadataReader, rules: Pretokenizer, tokens: Sequence[str]
) -> tuple[dict[str, Any] | None, list[str]]:
    """What raw prompts get, None for nothing, and notes. Without its key there is no BOS or EOS to add."""
    around: dict[str, int] = {}
    notes = []
    for name, default in (("bos", rules.adds_bos), ("eos", False)):
        stated = metadata.boolean(f"tokenizer.ggml.add_{name}_token")
        index = metadata.token_id(f"{name}_token_id", len(tokens))
        wanted = default if stated is None else stated
        if wanted and index is None:
            notes.append(
                f"tokenizer: {name.upper()} should be added, but no {name}_token_id is given: nothing is added"
            )
        elif wanted and index is not None:
            around[name] = index
    if not around:
        return None, notes
    special = {name: {"SpecialToken": {"id": tokens[index], "type_id": 0}} for name, index in around.items()}
    before, after = ([special[name]] if name in special else [] for name in ("bos", "eos"))
    first, second = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    processor = {
        "type": "TemplateProcessing",
        "single": [*before, first, *after],
        "pair": [*before, first, *after, *before, second, *after],
        "special_tokens": {
            tokens[index]: {"id": tokens[index], "ids": [index], "tokens": [tokens[index]]} for index in around.values()
        },
    }
    return processor, notes
