"""Text to token ids and back, by the ``tokenizers`` library itself; ``tokenizer.json`` of model folders.

Ids never come from ``transformers``: several of its releases rebuild pre-tokenizers and return wrong ids. It is only
asked, on a fixed text, whether it agrees (``tokenizer_check``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import Any

import orjson
import tokenizers
import tokenizers.pre_tokenizers

from detharness.checkpoints.model_files import read_json_object, require_file
from detharness.checkpoints.tokenizer_check import cross_check
from detharness.errors import CheckpointError, RequestError
from detharness.records.digests import sha256_bytes

REPLACEMENT = "\ufffd"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


class CrossCheck(Enum):
    """Whether a folder's tokenizer is compared with ``transformers.AutoTokenizer``, which takes seconds to import."""

    AUTO_TOKENIZER = "auto_tokenizer"
    SKIP = "skip"


class Tokenizer:
    """One tokenizer.

    ``content`` is what ``tokenizer.json`` holds, as plain JSON values; ``where`` names the file in errors;
    ``eos_tokens`` maps the text of an end token to the place that names it. Content that the library cannot read
    raises ``CheckpointError``. Truncation and padding, which some files switch on, are switched off: a prompt is never
    cut or filled in silence.

    vocab_size: ids below it are real tokens (highest id + 1, added tokens included); rows of an embedding above it
    are padding. digest: SHA-256 of the content as JSON with sorted keys. eos_token_ids: the ids that the
    tokenizer's own files call end of text. notes: what was inferred or switched off, as plain sentences.
    """

    def __init__(
        self,
        content: Mapping[str, Any],
        *,
        where: str,
        eos_tokens: Mapping[str, str] | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        kept = {**content, "truncation": None, "padding": None}
        try:
            # The values came from JSON or are built of plain ones, so this is their canonical form.
            serialised = orjson.dumps(kept, option=orjson.OPT_SORT_KEYS)
            self._backend = tokenizers.Tokenizer.from_buffer(serialised)
        except Exception as error:  # The library raises plain Exception for whatever it cannot read.
            raise CheckpointError(
                f"{where} does not hold a tokenizer this version of the tokenizers library ({tokenizers.__version__}) "
                f"can read ({error}): fetch the file again or update the library"
            ) from None
        self.digest = sha256_bytes(serialised)
        vocabulary = self._backend.get_vocab(with_added_tokens=True)
        if not vocabulary:
            raise CheckpointError(f"{where} holds an empty vocabulary: fetch the file again")
        self.vocab_size = max(vocabulary.values()) + 1
        self._known = frozenset(vocabulary.values())
        self._special = frozenset(
            token_id for token_id, token in self._backend.get_added_tokens_decoder().items() if token.special
        )
        self._bytes = _byte_fallback_ids(content.get("decoder"), vocabulary)
        ends = {token: vocabulary.get(token) for token in eos_tokens or {}}
        self.eos_token_ids = tuple(token_id for token_id in ends.values() if token_id is not None)
        self.notes: tuple[str, ...] = (
            *notes,
            *(
                f"{origin} names the end token {token!r}, which the tokenizer does not have"
                for token, origin in (eos_tokens or {}).items()
                if ends[token] is None
            ),
            *self._switched_off(content),
            self._raw_prompt_note(),
            *_missing_bytes(content.get("decoder"), vocabulary),
        )

    def encode(self, text: str) -> tuple[int, ...]:
        """Ids of a raw prompt. Special tokens are added where the tokenizer's own post-processor says, nowhere else.

        Special tokens spelt out in ``text`` become those tokens, as in every server. RequestError if ``text`` is not
        valid Unicode.
        """
        return self._encode(text, add_special_tokens=True)

    def encode_rendered(self, text: str) -> tuple[int, ...]:
        """Ids of text a chat template has rendered: nothing is added, since the template wrote BOS itself if any.

        Special tokens spelt out in ``text`` become those tokens. RequestError if ``text`` is not valid Unicode.
        """
        return self._encode(text, add_special_tokens=False)

    def decode(self, token_ids: Sequence[int], *, continues: bool = False) -> str:
        """Text of ``token_ids``: special tokens are left out, other added tokens (``<think>``) are printed.

        An id that is no token (a padded row of the embedding) is printed as ``<unk:151700>``. Bytes that are not
        valid UTF-8 become one U+FFFD for each ill-formed sequence, also under byte-fallback decoders, whose own
        decoding would spoil the valid characters beside it. ``continues``: the ids follow earlier text, so a
        leading space that a SentencePiece decoder strips from the start of a text is kept.

        Every prefix of the ids therefore decodes to a prefix of the text, but for one U+FFFD at its end.
        """
        text = ""
        for piece in self._pieces([token_id for token_id in token_ids if token_id not in self._special]):
            if isinstance(piece, str):
                text += piece
            elif text or continues:
                text += self._decode([*self._anchor, *piece])[self._anchor_length :]
            else:
                text += self._decode(piece)
        return text

    def is_special(self, token_id: int) -> bool:
        """Whether ``decode`` leaves the token out."""
        return token_id in self._special

    def _encode(self, text: str, *, add_special_tokens: bool) -> tuple[int, ...]:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise RequestError(
                f"the text holds a lone surrogate at character {error.start}, which is not valid Unicode: remove it"
            ) from None
        return tuple(self._backend.encode(text, add_special_tokens=add_special_tokens).ids)

    def _decode(self, token_ids: Sequence[int]) -> str:
        text: str = self._backend.decode(list(token_ids), skip_special_tokens=True)
        return text

    def _pieces(self, token_ids: Sequence[int]) -> Iterator[Sequence[int] | str]:
        """Runs of ids that the library can decode, and literal text for what it cannot."""
        run: list[int] = []
        index = 0
        while index < len(token_ids):
            if token_ids[index] not in self._known:
                if run:
                    yield run
                    run = []
                yield f"<unk:{token_ids[index]}>"
                index += 1
            elif token_ids[index] not in self._bytes:
                run.append(token_ids[index])
                index += 1
            else:
                end = index
                while end < len(token_ids) and token_ids[end] in self._bytes:
                    end += 1
                for well_formed, start, stop in _utf8_spans(bytes(self._bytes[i] for i in token_ids[index:end])):
                    if well_formed:
                        run.extend(token_ids[index + start : index + stop])
                        continue
                    if run:
                        yield run
                        run = []
                    yield REPLACEMENT
                index = end
        if run:
            yield run

    @cached_property
    def _anchor(self) -> tuple[int, ...]:
        """An id with plain ASCII text, put before ids that do not start a text, so that nothing is stripped there."""
        for token_id in sorted(self._known - self._special):
            text = self._decode([token_id])
            if text.isascii() and text.isalnum():
                return (token_id,)
        return ()

    @cached_property
    def _anchor_length(self) -> int:
        return len(self._decode(self._anchor))

    def _switched_off(self, content: Mapping[str, Any]) -> Iterator[str]:
        for name in ("truncation", "padding"):
            if content.get(name) is not None:
                yield f"the tokenizer file switches {name} on; it is switched off here"

    def _raw_prompt_note(self) -> str:
        plain, full = self._backend.encode("a", add_special_tokens=False).ids, self._backend.encode("a").ids
        added = [token_id for token_id in full if token_id not in plain]
        if not added:
            return "raw prompts: the tokenizer adds no special tokens"
        names = ", ".join(f"{self._backend.id_to_token(token_id)} ({token_id})" for token_id in added)
        return f"raw prompts: the tokenizer adds {names}; rendered chats get nothing added"


def _missing_bytes(decoder: Any, vocabulary: Mapping[str, int]) -> Iterator[str]:
    """A note if a byte-level vocabulary lacks bytes that text may hold (SmolLM2's does): they vanish in silence."""
    if not isinstance(decoder, dict) or decoder.get("type") != "ByteLevel":
        return
    never = {chr(byte) for byte in (0xC0, 0xC1, *range(0xF5, 0x100))}  # UTF-8 has no use for these bytes.
    missing = set(tokenizers.pre_tokenizers.ByteLevel.alphabet()) - never - vocabulary.keys()
    if missing:
        yield (
            f"the vocabulary has no token for {len(missing)} of the bytes of UTF-8: characters that need one are "
            "dropped from prompts, wholly or in part"
        )


def _byte_fallback_ids(decoder: Any, vocabulary: Mapping[str, int]) -> dict[int, int]:
    """Token id -> byte, if the decoder turns ``<0x41>`` into bytes; else empty."""
    steps = decoder.get("decoders", [decoder]) if isinstance(decoder, dict) else []
    if not any(isinstance(step, dict) and step.get("type") == "ByteFallback" for step in steps):
        return {}
    matches = ((token_id, _BYTE_TOKEN.fullmatch(token)) for token, token_id in vocabulary.items())
    return {token_id: int(match[1], 16) for token_id, match in matches if match}


def _utf8_spans(data: bytes) -> Iterator[tuple[bool, int, int]]:
    """Split into (well-formed, start, end) spans; an ill-formed span is a maximal subpart, as Unicode recommends."""
    start = 0
    while start < len(data):
        try:
            data[start:].decode()
        except UnicodeDecodeError as error:
            if error.start:
                yield True, start, start + error.start
            yield False, start + error.start, start + error.end
            start += error.end
        else:
            yield True, start, len(data)
            return


def load_tokenizer_folder(folder: Path, *, check: CrossCheck = CrossCheck.AUTO_TOKENIZER) -> Tokenizer:
    """Read ``tokenizer.json`` of a model folder, and the end token its companion files name.

    A disagreement with ``AutoTokenizer`` becomes a note, and ``tokenizer.json`` is used. CheckpointError if the file is
    missing or damaged, also where only another kind of tokenizer file is there.
    """
    path = folder / "tokenizer.json"
    if not path.exists() and not path.is_symlink():
        raise CheckpointError(_no_tokenizer(folder))
    content = read_json_object(path, "it holds the tokenizer")
    eos_tokens, notes = _eos_tokens(folder)
    tokenizer = Tokenizer(content, where=str(path), eos_tokens=eos_tokens, notes=notes)
    if check is CrossCheck.AUTO_TOKENIZER and (finding := cross_check(folder)) is not None:
        tokenizer.notes = (*tokenizer.notes, finding)
    return tokenizer


def _no_tokenizer(folder: Path) -> str:
    convert = (
        "write one with transformers.AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER), or give a model "
        "whose folder has it"
    )
    if (folder / "tokenizer.model").exists():
        return f"{folder} has tokenizer.model but no tokenizer.json, the only form that is read: {convert}"
    if (folder / "vocab.json").exists() and (folder / "merges.txt").exists():
        return f"{folder} has vocab.json and merges.txt but no tokenizer.json, the only form that is read: {convert}"
    return f"{folder} has no tokenizer.json, so text cannot be turned into tokens: fetch it from the model's repository"


def special_token_text(value: Any) -> str | None:
    """A special token as configuration files write it: a string, an object with ``content``, or null."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) and value else None


def read_optional_json(path: Path, purpose: str) -> dict[str, Any]:
    """The JSON object in ``path``, or an empty one if there is no such file."""
    return read_json_object(require_file(path, purpose), purpose) if path.exists() or path.is_symlink() else {}


def _eos_tokens(folder: Path) -> tuple[dict[str, str], list[str]]:
    """End token text -> file that names it first."""
    found: dict[str, str] = {}
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        token = special_token_text(read_optional_json(folder / name, "it names special tokens").get("eos_token"))
        if token is not None:
            found.setdefault(token, name)
    notes = []
    if len(found) > 1:
        notes.append("the tokenizer's files disagree on the end token: " + ", ".join(map(repr, found)))
    return found, notes
