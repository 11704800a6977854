"""Typed reading of a GGUF file's metadata: every value of an unexpected type names its key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gguf
import numpy as np

from detharness.errors import CheckpointError

_TYPES = gguf.GGUFValueType
_INTEGERS = frozenset(
    {
        _TYPES.UINT8,
        _TYPES.INT8,
        _TYPES.UINT16,
        _TYPES.INT16,
        _TYPES.UINT32,
        _TYPES.INT32,
        _TYPES.UINT64,
        _TYPES.INT64,
    }
)
_NUMBERS = _INTEGERS | {_TYPES.FLOAT32, _TYPES.FLOAT64}


class MetadataReader:
    """Values by key; None where the key is absent, ``CheckpointError`` where the type is not the one asked for.

    ``where``: the file's path.
    """

    def __init__(self, reader: gguf.GGUFReader) -> None:
        self._reader = reader
        self.where = str(reader.data.filename)

    def string(self, key: str) -> str | None:
        """A text."""
        field = self._field(key, frozenset({_TYPES.STRING}), "a text", is_array=False)
        return None if field is None else self._text(field, -1, key)

    def boolean(self, key: str) -> bool | None:
        """True or false."""
        field = self._field(key, frozenset({_TYPES.BOOL}), "true or false", is_array=False)
        return None if field is None else bool(field.parts[-1][0])

    def token_id(self, key: str, count: int) -> int | None:
        """``tokenizer.ggml.<key>``, a token id below ``count``."""
        name = f"tokenizer.ggml.{key}"
        field = self._field(name, _INTEGERS, "a whole number", is_array=False)
        if field is None:
            return None
        value = int(field.parts[-1][0])
        if not 0 <= value < count:
            raise CheckpointError(
                f"{self.where}: {name} is {value}, but there are only {count} tokens: use another conversion of "
                "this model"
            )
        return value

    def token_text(self, key: str) -> str | None:
        """The token that ``tokenizer.ggml.<key>`` names; None if there is no such key."""
        tokens = self._field("tokenizer.ggml.tokens", frozenset({_TYPES.STRING}), "a list of texts", is_array=True)
        token_id = self.token_id(key, len(tokens.data) if tokens is not None else 0)
        return None if token_id is None or tokens is None else self._text(tokens, tokens.data[token_id], key)

    def strings(self, key: str) -> list[str] | None:
        """A list of texts."""
        field = self._field(key, frozenset({_TYPES.STRING}), "a list of texts", is_array=True)
        return None if field is None else [self._text(field, part, key) for part in field.data]

    def numbers(self, key: str) -> Sequence[Any] | None:
        """A list of numbers."""
        field = self._field(key, _NUMBERS, "a list of numbers", is_array=True)
        if field is None:
            return None
        # One item per part: joined as raw bytes, because joining 50,000 arrays of one number is slow.
        parts = [field.parts[part] for part in field.data]
        if not parts:
            return []
        values: list[Any] = np.frombuffer(b"".join(part.tobytes() for part in parts), dtype=parts[0].dtype).tolist()
        return values

    def _field(
        self, key: str, kinds: frozenset[gguf.GGUFValueType], wanted: str, *, is_array: bool
    ) -> gguf.ReaderField | None:
        field = self._reader.get_field(key)
        if field is None:
            return None
        types = field.types
        empty_array = types == [_TYPES.ARRAY]
        if is_array and (empty_array or (types[0] == _TYPES.ARRAY and len(types) == 2 and types[1] in kinds)):
            return field
        if not is_array and len(types) == 1 and types[0] in kinds:
            return field
        raise CheckpointError(f"{self.where}: {key} is not {wanted}: use another conversion of this model")

    def _text(self, field: gguf.ReaderField, part: int, key: str) -> str:
        try:
            return str(field.parts[part].tobytes(), "utf-8")
        except UnicodeDecodeError:
            raise CheckpointError(f"{self.where}: {key} holds text that is not UTF-8: fetch the file again") from None
