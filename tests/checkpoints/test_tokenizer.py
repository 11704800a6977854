"""``tokenizer.json`` of folders: ids by its own rules, text back, and every refusal in one sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from detharness.checkpoints import tokenizer as tokenizer_module
from detharness.checkpoints.tokenizer import CrossCheck, Tokenizer, load_tokenizer_folder
from detharness.checkpoints.tokenizer_check import cross_check
from detharness.errors import CheckpointError, RequestError

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
# ByteLevel writes printable bytes as themselves and the others as characters from U+0100 on, in order.
_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_SHIFTED = [byte for byte in range(256) if byte not in _PRINTABLE]
ALPHABET_BYTES = [ord(char) if ord(char) < 0x100 else _SHIFTED[ord(char) - 0x100] for char in ALPHABET]

EOS, BOS, THINK = 256, 257, 258
TEXTS = [
    "",
    " ",
    "a",
    " two  spaces ",
    "1234567",
    "naïve e\u0301 \u4f60\u597d \U0001f469\u200d\U0001f4bb",
    "\n\n\t x\r\n",
    "\x00",
]


def byte_level() -> Backend:
    """Every byte is a token; <eos> and <bos> are special, <think> is not."""
    backend = Backend(models.BPE(vocab={char: index for index, char in enumerate(ALPHABET)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<eos>", "<bos>"])
    backend.add_tokens([AddedToken("<think>", normalized=False)])
    return backend


def sentencepiece() -> Backend:
    """The form of Llama 2: words, a space mark, and byte tokens for everything else."""
    pieces = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "\u2581",
        "a",
        "b",
        "\u2581a",
        "\u2581b",
    ]
    vocab = {piece: index for index, piece in enumerate(pieces)}
    merges = [("\u2581", "a"), ("\u2581", "b")]
    backend = Backend(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    return backend


def wrap(backend: Backend, **changes: Any) -> Tokenizer:
    return Tokenizer({**json.loads(backend.to_str()), **changes}, where="here")


def write(folder: Path, backend: Backend, **files: Any) -> Path:
    backend.save(str(folder / "tokenizer.json"))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def refusal(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        load_tokenizer_folder(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("text", TEXTS)
def test_text_comes_back(text: str) -> None:
    tokenizer = wrap(byte_level())
    ids = tokenizer.encode(text)
    assert bytes(ALPHABET_BYTES[token] for token in ids) == text.encode()
    assert tokenizer.decode(ids) == text


def test_special_tokens_are_parsed_and_left_out_and_others_are_printed() -> None:
    tokenizer = wrap(byte_level())
    ids = tokenizer.encode("<bos>a<think>b<eos>")
    assert [token for token in ids if token >= EOS] == [BOS, THINK, EOS]
    assert tokenizer.decode(ids) == "a<think>b"
    assert [tokenizer.is_special(token) for token in (EOS, BOS, THINK, 0, 10**6)] == [True, True, False, False, False]


def test_only_the_post_processor_adds_special_tokens_and_never_after_a_template() -> None:
    plain = wrap(byte_level())
    assert plain.encode("a") == plain.encode_rendered("a")
    backend = byte_level()
    backend.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", BOS)])
    tokenizer = wrap(backend)
    assert tokenizer.encode("a") == (BOS, *tokenizer.encode_rendered("a"))
    assert tokenizer.encode_rendered("<bos>a").count(BOS) == 1
    assert "raw prompts: the tokenizer adds <bos> (257); rendered chats get nothing added" in tokenizer.notes
    assert "raw prompts: the tokenizer adds no special tokens" in plain.notes


def test_truncation_and_padding_are_switched_off_and_said() -> None:
    backend = byte_level()
    backend.enable_truncation(2)
    backend.enable_padding(length=9)
    tokenizer = wrap(backend)
    assert tokenizer.decode(tokenizer.encode("abcd")) == "abcd"
    assert sum("switched off here" in note for note in tokenizer.notes) == 2


def test_ids_that_are_no_token_are_printed_and_never_crash() -> None:
    tokenizer = wrap(byte_level())
    a, b = tokenizer.encode("ab")
    assert tokenizer.vocab_size == 259
    assert tokenizer.decode([a, 151700, b, 259]) == "a<unk:151700>b<unk:259>"
    assert tokenizer.decode([]) == ""


def test_bytes_without_a_token_are_said() -> None:
    """A C0 control character and the first byte of some rare characters; 0xC0 never occurs in text."""
    values = json.loads(byte_level().to_str())
    assert not any("no token for" in note for note in wrap(byte_level()).notes)
    for byte, said in (("\u0104", True), ("\u00f1", True), ("\u00c0", False)):
        vocab = {piece: index for piece, index in values["model"]["vocab"].items() if piece != byte}
        tokenizer = wrap(byte_level(), model={**values["model"], "vocab": vocab})
        assert any("no token for 1 of the bytes of UTF-8" in note for note in tokenizer.notes) == said
    assert not any("no token for" in note for note in wrap(sentencepiece()).notes)


def test_half_a_character_is_one_replacement_character() -> None:
    tokenizer = wrap(byte_level())
    ids = tokenizer.encode("x\U0001f600")
    assert tokenizer.decode(ids[:-1]) == "x\ufffd"


def test_a_lone_surrogate_is_refused() -> None:
    for encode in (wrap(byte_level()).encode, wrap(byte_level()).encode_rendered):
        with pytest.raises(RequestError, match="lone surrogate at character 1"):
            encode("a\ud800")


def test_sentencepiece_adds_one_space_and_takes_it_away() -> None:
    tokenizer = wrap(sentencepiece())
    for text in ("a b", " a", "a  b", "\u4f60 a", "a\n\nb", "\U0001f600", "<0x41>"):
        ids = tokenizer.encode(text)
        assert ids[0] == 1
        assert tokenizer.decode(ids) == text
        assert tokenizer.decode(tokenizer.encode_rendered(text)) == text


def test_broken_bytes_do_not_spoil_good_ones_beside_them() -> None:
    tokenizer = wrap(sentencepiece())
    good = tokenizer.encode_rendered("\u4f60")[1:]  # Without the space mark.
    a = tokenizer.encode_rendered("a")
    assert tokenizer.decode([*a, *good, good[0], *a]) == "a\u4f60\ufffd a"
    assert tokenizer.decode([*a, *good[:2]]) == "a\ufffd"


def test_a_continuation_keeps_its_leading_space() -> None:
    tokenizer = wrap(sentencepiece())
    ids = tokenizer.encode_rendered("a")
    assert tokenizer.decode(ids) == "a"
    assert tokenizer.decode(ids, continues=True) == " a"
    byte_tokenizer = wrap(byte_level())
    assert byte_tokenizer.decode(byte_tokenizer.encode(" a"), continues=True) == " a"


def test_digest_follows_content_not_layout(tmp_path: Path) -> None:
    backend = byte_level()
    folder = write(tmp_path, backend)
    first = load_tokenizer_folder(folder).digest
    path = folder / "tokenizer.json"
    values = json.loads(path.read_text())
    path.write_text(json.dumps(dict(reversed(values.items())), indent=3))
    assert load_tokenizer_folder(folder).digest == first
    backend.enable_truncation(2)
    assert load_tokenizer_folder(write(tmp_path, backend)).digest == first  # Switched off, so the ids are the same.
    backend.add_tokens(["<new>"])
    assert load_tokenizer_folder(write(tmp_path, backend)).digest != first


@pytest.mark.parametrize("token", ["<eos>", {"__type": "AddedToken", "content": "<eos>", "special": True}])
@pytest.mark.parametrize("name", ["tokenizer_config", "special_tokens_map"])
def test_end_token_of_the_companion_files(tmp_path: Path, name: str, token: Any) -> None:
    folder = write(tmp_path, byte_level(), **{name: {"eos_token": token}})
    assert load_tokenizer_folder(folder).eos_token_ids == (EOS,)


def test_disagreeing_and_unknown_end_tokens_are_said(tmp_path: Path) -> None:
    files = {"tokenizer_config": {"eos_token": "<eos>"}, "special_tokens_map": {"eos_token": "<think>"}}
    tokenizer = load_tokenizer_folder(write(tmp_path, byte_level(), **files))
    assert tokenizer.eos_token_ids == (EOS, THINK)
    assert any("disagree on the end token: '<eos>', '<think>'" in note for note in tokenizer.notes)
    tokenizer = load_tokenizer_folder(write(tmp_path, byte_level(), tokenizer_config={"eos_token": "<other>"}))
    assert tokenizer.eos_token_ids == (THINK,)
    assert any("'<other>', which the tokenizer does not have" in note for note in tokenizer.notes)


def test_no_end_token(tmp_path: Path) -> None:
    assert (
        load_tokenizer_folder(write(tmp_path, byte_level(), tokenizer_config={"eos_token": None})).eos_token_ids == ()
    )


def test_missing_files_say_what_to_do(tmp_path: Path) -> None:
    assert f"{tmp_path} has no tokenizer.json" in refusal(tmp_path)
    (tmp_path / "vocab.json").write_text("{}")
    (tmp_path / "merges.txt").write_text("")
    assert "has vocab.json and merges.txt but no tokenizer.json" in refusal(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(b"x")
    assert "has tokenizer.model but no tokenizer.json" in refusal(tmp_path)
    assert "save_pretrained" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", "is not valid JSON"),
        (b"[]", "must hold a JSON object"),
        (b"\xff", "is not valid JSON"),
        (b"{}", "does not hold a tokenizer this version of the tokenizers library"),
        (b'{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["x y"]}}', "does not hold a tokenizer"),
        (b'{"model": {"type": "BPE", "vocab": {}, "merges": []}}', "holds an empty vocabulary"),
        (b'{"model": {"type": "New", "vocab": {}}}', "does not hold a tokenizer"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "is a Git-LFS pointer"),
    ],
)
def test_damaged_files(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    assert said in refusal(tmp_path)


def test_damaged_companion(tmp_path: Path) -> None:
    write(tmp_path, byte_level())
    (tmp_path / "special_tokens_map.json").write_text("{")
    assert "special_tokens_map.json is not valid JSON" in refusal(tmp_path)


def test_cross_check_agrees_on_a_plain_folder(tiny_folder: Callable[..., Path]) -> None:
    assert cross_check(tiny_folder("llama")) is None


def test_loading_a_folder_asks_once_unless_told_not_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Path] = []
    monkeypatch.setattr(tokenizer_module, "cross_check", lambda folder: asked.append(folder) or "they differ")
    write(tmp_path, byte_level())
    assert load_tokenizer_folder(tmp_path).notes[-1] == "they differ"
    assert "they differ" not in load_tokenizer_folder(tmp_path, check=CrossCheck.SKIP).notes
    assert asked == [tmp_path]


def test_cross_check_sees_a_family_that_changes_the_text(tmp_path: Path) -> None:
    """The class of Qwen2 composes characters first, whatever tokenizer.json says."""
    write(tmp_path, byte_level(), config={"model_type": "qwen2"})
    finding = cross_check(tmp_path)
    assert finding is not None
    assert "gives other ids than tokenizer.json" in finding


def test_cross_check_finds_other_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers

    class Other:
        def __call__(self, text: str, *, add_special_tokens: bool) -> dict[str, list[int]]:
            ids = list(wrap(byte_level()).encode(text))
            return {"input_ids": [*ids[:5], 0, *ids[6:]] if add_special_tokens else ids}

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", lambda *_, **__: Other())
    finding = cross_check(write(tmp_path, byte_level()))
    assert finding is not None
    assert "gives other ids than tokenizer.json (with special tokens, from token 5 of a fixed text)" in finding


def test_cross_check_says_when_the_other_library_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers

    def fail(*_: Any, **__: Any) -> None:
        raise ValueError("two\nlines")

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", fail)
    finding = cross_check(write(tmp_path, byte_level()))
    assert finding == "tokenizer: transformers.AutoTokenizer cannot load this folder (ValueError: two lines)"
