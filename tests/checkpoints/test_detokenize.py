"""The pieces of a growing reply, joined, are the text of all its ids; and no piece is ever taken back."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from detharness.checkpoints.detokenize import IncrementalDetokenizer
from detharness.checkpoints.tokenizer import Tokenizer


def byte_level() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE(vocab={char: index for index, char in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<eos>"])
    backend.add_tokens([AddedToken("<think>", normalized=False), AddedToken("\ufffd", normalized=False)])
    return Tokenizer(json.loads(backend.to_str()), where="here")


def sentencepiece() -> Tokenizer:
    words = ["\u2581", "a", "b", "\u2581a", "\u2581\u2581", "\ufffd"]
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    vocab = {piece: index for index, piece in enumerate(pieces)}
    merges = [("\u2581", "a"), ("\u2581", "\u2581")]
    backend = Backend(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    return Tokenizer(json.loads(backend.to_str()), where="here")


TOKENIZERS = {"byte level": byte_level(), "sentencepiece": sentencepiece()}
CHARACTERS = ["a", " ", "\u00e9", "\u4f60", "\U0001f600", "<think>", "<eos>", "</s>"]


def check(tokenizer: Tokenizer, ids: list[int]) -> None:
    detokenizer = IncrementalDetokenizer(tokenizer)
    shown = ""
    whole = tokenizer.decode(ids)
    for token in ids:
        shown += detokenizer.push(token)
        assert whole.startswith(shown)
    assert shown + detokenizer.flush() == whole
    assert detokenizer.flush() == ""


@st.composite
def replies(draw: st.DrawFn, tokenizer: Tokenizer) -> list[int]:
    """Whole characters, parts of them, stray ids, padding rows: whatever a model may draw."""
    character = st.sampled_from([list(tokenizer.encode_rendered(text)) for text in CHARACTERS])
    part = character.flatmap(lambda ids: st.integers(0, len(ids)).map(lambda end: ids[:end]))
    stray = st.integers(0, tokenizer.vocab_size + 2).map(lambda token: [token])
    pieces = draw(st.lists(st.one_of(character, part, stray), max_size=40))
    return [token for piece in pieces for token in piece]


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_pieces_make_up_the_whole(name: str, data: st.DataObject) -> None:
    check(TOKENIZERS[name], data.draw(replies(TOKENIZERS[name])))


@pytest.mark.parametrize("name", TOKENIZERS)
def test_long_replies_of_broken_bytes(name: str) -> None:
    """Almost every prefix ends in an ill-formed sequence, so the window must be cut between two of them."""
    tokenizer = TOKENIZERS[name]
    rng = random.Random(7)
    lead = [token for token in range(tokenizer.vocab_size) if tokenizer.decode([token], continues=True) == "\ufffd"]
    check(tokenizer, [rng.choice(lead) for _ in range(1500)])


@pytest.mark.parametrize("name", TOKENIZERS)
def test_work_per_id_does_not_grow_with_the_reply(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = TOKENIZERS[name]
    longest = 0
    decode = tokenizer.decode

    def measured(token_ids: list[int], *, continues: bool = False) -> str:
        nonlocal longest
        longest = max(longest, len(token_ids))
        return decode(token_ids, continues=continues)

    monkeypatch.setattr(tokenizer, "decode", measured)
    half = tokenizer.encode_rendered("\u4f60")[-3]
    for ids in (
        [half] * 500,
        list(tokenizer.encode_rendered("a \u4f60\U0001f600 " * 100)),
        [*tokenizer.encode("</s>")] * 9,
    ):
        detokenizer = IncrementalDetokenizer(tokenizer)
        for token in ids:
            detokenizer.push(token)
    assert 1 < longest <= 64


def test_characters_appear_when_they_are_whole() -> None:
    tokenizer = TOKENIZERS["byte level"]
    detokenizer = IncrementalDetokenizer(tokenizer)
    ids = tokenizer.encode("x\U0001f600y")
    assert [detokenizer.push(token) for token in ids] == ["x", "", "", "", "\U0001f600", "y"]


def test_half_a_character_appears_when_nothing_can_complete_it() -> None:
    tokenizer = TOKENIZERS["byte level"]
    smile, x = tokenizer.encode("\U0001f600"), tokenizer.encode("x")[0]
    detokenizer = IncrementalDetokenizer(tokenizer)
    assert [detokenizer.push(token) for token in (smile[0], smile[1], x)] == ["", "", "\ufffdx"]
    assert [detokenizer.push(token) for token in smile[:3]] == ["", "", ""]
    assert detokenizer.flush() == "\ufffd"


def test_spaces_of_sentencepiece_survive() -> None:
    tokenizer = TOKENIZERS["sentencepiece"]
    detokenizer = IncrementalDetokenizer(tokenizer)
    assert [detokenizer.push(token) for token in tokenizer.encode("a a a")] == ["a", " a", " a"]
