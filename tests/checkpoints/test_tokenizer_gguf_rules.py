"""Tokenizers inside GGUF files, against naive tokenizers written from the published rules.

The oracles share nothing with the code under test: the ``regex`` module splits, and loops over Python lists merge.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unicodedata import normalize

import gguf
import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from detharness.checkpoints.gguf_pretokenizers import PRETOKENIZERS
from detharness.checkpoints.gguf_tokenizer import load_tokenizer_gguf
from detharness.checkpoints.locate import locate_model
from detharness.checkpoints.tokenizer import Tokenizer

WriteGguf = Callable[..., Path]

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
SMOLLM = r"\p{N}|(?:(?!\p{N}).)+"  # First cut out single digits, then GPT-2 within the rest.
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace("{1,3}", "")
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
FAMILIES = {"gpt-2": GPT2, "smollm": SMOLLM, "llama-bpe": LLAMA3, "qwen2": QWEN2, "tekken": TEKKEN}
WHOLE_PIECE_FIRST = ("llama-bpe", "tekken")

TEXTS = [
    "",
    " ",
    "Hello world",
    "Hello, y'all! How are you 😁 ?我想在apple工作1314151天～",  # noqa: RUF001
    "  leading and trailing  ",
    " \t\n\r\n \n\n\n  x",
    "3 33 333 3333 33333 ½ ² ٣٤٥ Ⅷ १२३ ①②",
    "I'LL can't It's we'Ve 'S",
    "def f(x: int = 1_000) -> str:\n    return f'{x!r}'  # ok\n\tpass\n",
    "camelCase HTTPServer ÀÉîõü ǅ naïve cafe\u0301 \u212b",
    "你好，世界。こんにちは 안녕하세요 ไทย नमस्ते שלום Привет",  # noqa: RUF001
    "👍🏽 👩‍💻 🇩🇪 🏴",
    "\x00\x01\x7f \u200b\ufeff\u00a0\u3000\u2028",
    "https://a.b/c?d=e&f=%20#g ... !!! ??? --- === /* */ \\n",
    "a/b//c\n/\r\n//",
    '{"a": [1, 2.5e-3, null], \'b\': "\\u00e9"}',
]


def byte_characters() -> list[str]:
    """GPT-2's printable stand-in for every byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    shifted = itertools.count(0x100)
    return [chr(byte) if byte in printable else chr(next(shifted)) for byte in range(256)]


BYTE = byte_characters()


def pieces(family: str, text: str) -> list[str]:
    if family == "qwen2":
        text = normalize("NFC", text)
    found: list[str] = regex.findall(FAMILIES[family], text, flags=regex.DOTALL)
    assert "".join(found) == text
    if family == "smollm":
        found = [part for piece in found for part in regex.findall(GPT2, piece)]
    return found


def merge_all(symbols: list[str], ranks: dict[tuple[str, str], int]) -> list[str]:
    """Naive BPE: again and again, the lowest-ranked pair, leftmost first."""
    while True:
        found = [(ranks[pair], at) for at, pair in enumerate(itertools.pairwise(symbols)) if pair in ranks]
        if not found:
            return symbols
        _, at = min(found)
        symbols = [*symbols[:at], symbols[at] + symbols[at + 1], *symbols[at + 2 :]]


def naive(family: str, text: str, ids: dict[str, int], ranks: dict[tuple[str, str], int]) -> tuple[int, ...]:
    """A byte without a token is dropped, as every implementation does."""
    result: list[int] = []
    for piece in pieces(family, text):
        mapped = "".join(BYTE[byte] for byte in piece.encode() if BYTE[byte] in ids)
        whole = family in WHOLE_PIECE_FIRST and mapped in ids
        result += [ids[symbol] for symbol in ([mapped] if whole else merge_all(list(mapped), ranks))]
    return tuple(result)


def test_smollm2_gives_the_ids_of_its_rules() -> None:
    reader = gguf.GGUFReader(locate_model("smollm2-135m").path)
    tokens, merges = (
        [bytes(field.parts[index]).decode() for index in field.data]
        for field in (reader.fields[f"tokenizer.ggml.{key}"] for key in ("tokens", "merges"))
    )
    ids = {token: index for index, token in enumerate(tokens)}
    ranks = {(merge.split(" ")[0], merge.split(" ")[1]): rank for rank, merge in enumerate(merges)}
    tokenizer = load_tokenizer_gguf(reader)
    for text in [*TEXTS, "\n".join(TEXTS), "\x04 has no token"]:
        assert tokenizer.encode(text) == naive("smollm", text, ids, ranks), text
    for text in TEXTS:
        assert tokenizer.decode(tokenizer.encode(text)) == text


def learn_merges(count: int) -> list[tuple[str, str]]:
    """Merges learnt without any split, so that they cross every boundary a split must set."""
    symbols = [BYTE[byte] for byte in "\n".join(TEXTS * 2).encode()]
    learnt: list[tuple[str, str]] = []
    for _ in range(count):
        pair = Counter(itertools.pairwise(symbols)).most_common(1)[0][0]
        learnt.append(pair)
        symbols = merge_all(symbols, {pair: 0})
    return learnt


# The digits tell how many of them a split keeps together. No merge makes "world".
MERGES = [("3", "3"), ("33", "3"), ("333", "3"), ("C", "a"), ("P", "S"), (BYTE[32], "3"), *learn_merges(60)]
RANKS = {pair: rank for rank, pair in enumerate(dict.fromkeys(MERGES))}
TOKENS = list(dict.fromkeys([*BYTE, *("".join(pair) for pair in MERGES), BYTE[32] + "world"]))
IDS = {token: index for index, token in enumerate(TOKENS)}


@pytest.fixture
def build(write_gguf: WriteGguf, tmp_path: Path) -> Callable[[str], Tokenizer]:
    def load(family: str) -> Tokenizer:
        metadata = {
            "tokenizer.ggml.pre": family,
            "tokenizer.ggml.tokens": TOKENS,
            "tokenizer.ggml.token_type": [1] * len(TOKENS),
            "tokenizer.ggml.merges": [" ".join(pair) for pair in RANKS],
            "tokenizer.ggml.eos_token_id": None,
        }
        return load_tokenizer_gguf(gguf.GGUFReader(write_gguf(tmp_path / "m.gguf", {}, metadata=metadata)))

    return load


def test_every_supported_name_is_held_to_its_rules() -> None:
    assert set(FAMILIES) == set(PRETOKENIZERS)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_gives_the_ids_of_its_rules(family: str, build: Callable[[str], Tokenizer]) -> None:
    tokenizer = build(family)
    for text in [*TEXTS, "\n".join(TEXTS)]:
        assert tokenizer.encode(text) == naive(family, text, IDS, RANKS), text
        assert tokenizer.decode(tokenizer.encode(text)) == (normalize("NFC", text) if family == "qwen2" else text)
    assert (IDS[BYTE[32] + "world"] in tokenizer.encode(" world")) == (family in WHOLE_PIECE_FIRST)


def test_the_texts_tell_every_two_families_apart() -> None:
    """Without this, the test above could pass with one family's rules in another's place."""
    vectors = {family: [naive(family, text, IDS, RANKS) for text in TEXTS] for family in FAMILIES}
    for one, other in itertools.combinations(FAMILIES, 2):
        assert vectors[one] != vectors[other], (one, other)


# A SentencePiece vocabulary as training makes it: a piece's score is minus its place.
MARK = "\u2581"
LETTERS = ["a", "b", MARK, "-", "\n"]
MADE = ["aa", MARK * 2, MARK + "a", "ab", "--", "aaaa", MARK * 4, "---", MARK + "ab", "----", "aab", MARK + "aa"]
SPM_TOKENS = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *MADE, *LETTERS]
SPM_IDS = {token: index for index, token in enumerate(SPM_TOKENS)}


def naive_sentencepiece(text: str) -> tuple[int, ...]:
    """Again and again, the two neighbours whose union has the best score, leftmost first; then bytes for the rest."""
    symbols = list((MARK + text.replace(" ", MARK)) if text else "")
    while True:
        unions = [left + right for left, right in itertools.pairwise(symbols)]
        found = [(SPM_IDS[union], at) for at, union in enumerate(unions) if union in SPM_IDS]
        if not found:
            break
        _, at = min(found)
        symbols[at : at + 2] = [unions[at]]
    known = [[symbol] if symbol in SPM_IDS else [f"<0x{byte:02X}>" for byte in symbol.encode()] for symbol in symbols]
    return tuple(SPM_IDS[token] for tokens in known for token in tokens)


@pytest.fixture(scope="module")
def sentencepiece(write_gguf: WriteGguf, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    metadata: dict[str, Any] = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": None,
        "tokenizer.ggml.merges": None,
        "tokenizer.ggml.tokens": SPM_TOKENS,
        "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, *[1] * len(MADE + LETTERS)],
        "tokenizer.ggml.scores": [-float(index) for index in range(len(SPM_TOKENS))],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }
    path = write_gguf(tmp_path_factory.mktemp("sentencepiece") / "m.gguf", {}, metadata=metadata)
    return load_tokenizer_gguf(gguf.GGUFReader(path))


@settings(max_examples=300, deadline=None)
@given(text=st.text(alphabet="aab  --\n\u00e9\u4f60\U0001f600", max_size=30))
def test_sentencepiece_gives_the_ids_of_its_rules(text: str, sentencepiece: Tokenizer) -> None:
    assert sentencepiece.encode_rendered(text) == naive_sentencepiece(text)
    assert sentencepiece.decode(sentencepiece.encode(text)) == text
