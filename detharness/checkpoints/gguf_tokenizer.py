"""The tokenizer inside a GGUF file, rebuilt as the ``tokenizer.json`` it was converted from.

A GGUF file holds tokens, their types, merges or scores, and the NAME of the pre-tokenizer, but not its rules. Those
are stated in ``gguf_pretokenizers``; a name that is not there is refused, because a near miss gives other ids on some
texts without an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import gguf

from detharness.checkpoints.gguf_metadata import MetadataReader
from detharness.checkpoints.gguf_pretokenizers import PRETOKENIZERS, Pretokenizer
from detharness.checkpoints.tokenizer import Tokenizer
from detharness.errors import CheckpointError

_PREFIX = "tokenizer.ggml."
_SPACE_MARK = "\u2581"


class _Kind(IntEnum):
    """``tokenizer.ggml.token_type``, as llama.cpp numbers it."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class _Vocabulary:
    """Token text and kind by id; ``ids`` is text -> id without padding rows, which are no tokens."""

    texts: Sequence[str]
    kinds: Sequence[int]
    ids: dict[str, int]

    def added_tokens(self) -> list[dict[str, Any]]:
        """Control tokens (special: parsed in a text, left out of replies) and user-defined ones (parsed, printed)."""
        flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
        kinds = (_Kind.CONTROL, _Kind.UNKNOWN, _Kind.USER_DEFINED)
        return [
            {"id": index, "content": text, **flags, "special": self.kinds[index] != _Kind.USER_DEFINED}
            for text, index in self.ids.items()
            if self.kinds[index] in kinds
        ]


def load_tokenizer_gguf(reader: gguf.GGUFReader) -> Tokenizer:
    """Build the tokenizer of an open GGUF file: byte-level BPE (``gpt2``) or SentencePiece BPE (``llama``).

    Control tokens become special, user-defined ones are parsed and printed, padding rows (unused, named ``[PAD<id>]``)
    are no tokens. BOS and EOS are added to raw prompts as ``add_bos_token`` and ``add_eos_token`` say, without them
    as the family does, and never when the file names no such token. Missing, damaged, contradictory or unsupported
    metadata raises ``CheckpointError``.
    """
    metadata = MetadataReader(reader)
    model = metadata.string(_PREFIX + "model")
    if model not in ("gpt2", "llama"):
        found = "has no tokenizer" if model is None else f"has a tokenizer of the kind {model!r}"
        raise CheckpointError(
            f"{metadata.where} {found}; 'gpt2' (byte-level BPE) and 'llama' (SentencePiece BPE) are supported: give "
            "the model's folder with tokenizer.json instead"
        )
    if model == "gpt2":
        name, pretokenizer = _pretokenizer(metadata)
        vocabulary = _read_vocabulary(metadata)
        content = _byte_level(metadata, vocabulary, pretokenizer)
        adds_bos = pretokenizer.adds_bos
        notes = [f"tokenizer: GGUF metadata, byte-level BPE, pre-tokenizer {name!r}"]
        if pretokenizer.normalizer is not None:
            notes.append("tokenizer: text is NFC-normalised first, as the original tokenizer does (llama.cpp does not)")
    else:
        vocabulary = _read_vocabulary(metadata, spaces_in_user_defined=True)
        content = _sentencepiece(metadata, vocabulary)
        adds_bos = True
        notes = ["tokenizer: GGUF metadata, SentencePiece BPE with byte fallback"]
    content["post_processor"] = _post_processor(metadata, vocabulary, adds_bos, notes)
    ends: dict[str, str] = {}
    for key in ("eos_token_id", "eot_token_id"):
        token_id = metadata.token_id(key, len(vocabulary.texts))
        if token_id is not None:
            ends.setdefault(vocabulary.texts[token_id], _PREFIX + key)
    return Tokenizer(content, where=metadata.where, eos_tokens=ends, notes=notes)


def _read_vocabulary(metadata: MetadataReader, *, spaces_in_user_defined: bool = False) -> _Vocabulary:
    """Tokens and types; with ``spaces_in_user_defined``, the space mark in user-defined tokens stands for a space."""
    texts = metadata.strings(_PREFIX + "tokens")
    if not texts:
        raise CheckpointError(f"{metadata.where} has no tokens ({_PREFIX}tokens): fetch the file again")
    kinds = metadata.numbers(_PREFIX + "token_type")
    if kinds is None:
        raise CheckpointError(
            f"{metadata.where} has no token types ({_PREFIX}token_type), so special tokens cannot be told from text: "
            "convert the model again with a current llama.cpp"
        )
    if len(kinds) != len(texts) or not set(kinds) <= set(_Kind):
        raise CheckpointError(
            f"{metadata.where}: {_PREFIX}token_type must give a known type to each of the {len(texts)} tokens: convert "
            "the model again"
        )
    if spaces_in_user_defined:
        texts = [
            text.replace(_SPACE_MARK, " ") if kind == _Kind.USER_DEFINED else text
            for text, kind in zip(texts, kinds, strict=True)
        ]
    ids: dict[str, int] = {}
    for index, text in enumerate(texts):
        if kinds[index] == _Kind.UNUSED and text == f"[PAD{index}]":
            continue
        if not text:
            raise CheckpointError(f"{metadata.where}: token {index} is empty: use another conversion of this model")
        if text in ids:
            raise CheckpointError(
                f"{metadata.where}: the tokens {ids[text]} and {index} are both {text!r}: use another conversion of "
                "this model"
            )
        ids[text] = index
    return _Vocabulary(texts, kinds, ids)


def _pretokenizer(metadata: MetadataReader) -> tuple[str, Pretokenizer]:
    name = metadata.string(_PREFIX + "pre")
    if name is None or name == "default":
        raise CheckpointError(
            f"{metadata.where} does not say how its tokenizer splits text ({_PREFIX}pre is {name or 'missing'}), and a "
            "guess would give wrong ids: convert the model again with a current llama.cpp"
        )
    if name not in PRETOKENIZERS:
        raise CheckpointError(
            f"{metadata.where}: the pre-tokenizer {name!r} is not supported (supported: {', '.join(PRETOKENIZERS)}): "
            "give the model's folder with tokenizer.json instead"
        )
    return name, PRETOKENIZERS[name]


def _byte_level(metadata: MetadataReader, vocabulary: _Vocabulary, pretokenizer: Pretokenizer) -> dict[str, Any]:
    merges = metadata.strings(_PREFIX + "merges")
    if merges is None:
        raise CheckpointError(f"{metadata.where} has no merges ({_PREFIX}merges): fetch the file again")
    return {
        "version": "1.0",
        "added_tokens": vocabulary.added_tokens(),
        "normalizer": pretokenizer.normalizer,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": list(pretokenizer.steps)},
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "vocab": vocabulary.ids,
            "merges": [_merge(merge, metadata.where) for merge in merges],
            "ignore_merges": pretokenizer.ignores_merges,
        },
    }


def _merge(merge: str, where: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    if not left or not right or " " in right:
        raise CheckpointError(f"{where}: the merge {merge!r} is not two pieces with a space between: fetch it again")
    return left, right


def _sentencepiece(metadata: MetadataReader, vocabulary: _Vocabulary) -> dict[str, Any]:
    scores = metadata.numbers(_PREFIX + "scores")
    if scores is None or len(scores) != len(vocabulary.texts):
        raise CheckpointError(
            f"{metadata.where} must give a score to each of its {len(vocabulary.texts)} tokens ({_PREFIX}scores): "
            "fetch the file again"
        )
    if metadata.boolean(_PREFIX + "remove_extra_whitespaces"):
        raise CheckpointError(
            f"{metadata.where}: the tokenizer removes extra spaces ({_PREFIX}remove_extra_whitespaces), which is not "
            "supported: give the model's folder with tokenizer.json instead"
        )
    add_prefix = metadata.boolean(_PREFIX + "add_space_prefix") is not False
    mark = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE_MARK}
    unmark = {"type": "Replace", "pattern": {"String": _SPACE_MARK}, "content": " "}
    normalizers = [{"type": "Prepend", "prepend": _SPACE_MARK}, mark] if add_prefix else [mark]
    decoders: list[dict[str, Any]] = [unmark, {"type": "ByteFallback"}, {"type": "Fuse"}]
    if add_prefix:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    unknown = [text for text, index in vocabulary.ids.items() if vocabulary.kinds[index] == _Kind.UNKNOWN]
    return {
        "version": "1.0",
        "added_tokens": vocabulary.added_tokens(),
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {
            "type": "BPE",
            "unk_token": unknown[0] if unknown else None,
            "fuse_unk": True,
            "byte_fallback": True,
            "vocab": vocabulary.ids,
            "merges": _merges_from_scores(vocabulary, scores),
        },
    }


def _merges_from_scores(vocabulary: _Vocabulary, scores: Sequence[float]) -> list[tuple[str, str]]:
    """Every way to put a normal token together from two, best token first: the order SentencePiece takes by score.

    SentencePiece has no rank among the ways to make one token: it takes the leftmost pair. Here the longer left part
    goes first, which gives the same ids on the vocabularies of Llama 2 and Phi-3.
    """
    normal = {text: index for text, index in vocabulary.ids.items() if vocabulary.kinds[index] == _Kind.NORMAL}
    found = [
        (-scores[index], -cut, text)
        for text, index in normal.items()
        for cut in range(1, len(text))
        if text[:cut] in normal and text[cut:] in normal
    ]
    found.sort(key=lambda item: item[:2])
    return [(text[:-cut], text[-cut:]) for _, cut, text in found]


def _post_processor(
    metadata: MetadataReader, vocabulary: _Vocabulary, adds_bos: bool, notes: list[str]
) -> dict[str, Any] | None:
    """What is added to raw prompts; None for nothing."""
    around: dict[str, str] = {}
    for name, default in (("bos", adds_bos), ("eos", False)):
        stated = metadata.boolean(f"{_PREFIX}add_{name}_token")
        if not (default if stated is None else stated):
            continue
        token_id = metadata.token_id(f"{name}_token_id", len(vocabulary.texts))
        if token_id is None:
            notes.append(f"tokenizer: {name.upper()} should be added, but the file names no such token: none is added")
        else:
            around[name] = vocabulary.texts[token_id]
    if not around:
        return None
    template: list[dict[str, Any]] = [{"Sequence": {"id": "A", "type_id": 0}}]
    if "bos" in around:
        template.insert(0, {"SpecialToken": {"id": around["bos"], "type_id": 0}})
    if "eos" in around:
        template.append({"SpecialToken": {"id": around["eos"], "type_id": 0}})
    return {
        "type": "TemplateProcessing",
        "single": template,
        "pair": template,
        "special_tokens": {
            text: {"id": text, "ids": [vocabulary.ids[text]], "tokens": [text]} for text in around.values()
        },
    }
