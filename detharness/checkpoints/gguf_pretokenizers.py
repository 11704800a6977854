"""What the names in ``tokenizer.ggml.pre`` stand for: how text is split before byte-level BPE.

Patterns are those of the models' own ``tokenizer.json``; ``llama.cpp`` keeps its own list of the same names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Pretokenizer:
    """``steps``: pre-tokenizers in ``tokenizer.json`` form.

    ignores_merges: a piece that is itself a token is taken whole before merges are tried. adds_bos: whether raw
    prompts begin with BOS where the file does not say.
    """

    steps: tuple[Mapping[str, Any], ...]
    ignores_merges: bool = False
    adds_bos: bool = False
    normalizer: Mapping[str, Any] | None = None


def _split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _bytes(*, splits: bool) -> dict[str, Any]:
    """Map to the byte alphabet; with ``splits``, GPT-2's own pattern first."""
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": splits}


_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_DIGITS = {"type": "Digits", "individual_digits": True}

_GPT2 = Pretokenizer((_bytes(splits=True),))
_DIGITS_THEN_GPT2 = Pretokenizer((_DIGITS, _bytes(splits=True)))
_LLAMA3 = (_split(rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}{{1,3}}|{_REST}"), _bytes(splits=False))
_QWEN2 = (_split(rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}|{_REST}"), _bytes(splits=False))
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_OPTIONAL_MARK = r"[^\r\n\p{L}\p{N}]?"
_TEKKEN = (
    _split(
        rf"{_OPTIONAL_MARK}{_UPPER}*{_LOWER}+|{_OPTIONAL_MARK}{_UPPER}+{_LOWER}*|\p{{N}}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
    _bytes(splits=False),
)

PRETOKENIZERS: Mapping[str, Pretokenizer] = {
    "gpt-2": _GPT2,
    "smollm": _DIGITS_THEN_GPT2,
    "llama-bpe": Pretokenizer(_LLAMA3, ignores_merges=True, adds_bos=True),
    "qwen2": Pretokenizer(_QWEN2, normalizer={"type": "NFC"}),
    "tekken": Pretokenizer(_TEKKEN, ignores_merges=True, adds_bos=True),
}
