import pytest

from detharness.errors import UsageError
from detharness.probes.prompt_files import LONGEST_TEXT, packaged_prompts, read_prompts, tokenize_prompts
from detharness.targets.protocol import SamplingParams


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("p.jsonl", '{"prompt": "a"}\n{"prompt": }\n', r"p\.jsonl, line 2: not valid JSON"),
        ("p.jsonl", "\n\n[1]\n", r"line 3: each line must be a JSON object"),
        ("p.jsonl", '{"id": "x"}\n', "line 1: give exactly one of prompt, messages, token_ids, found none"),
        ("p.jsonl", '{"prompt": "a", "token_ids": [1]}\n', "found prompt, token_ids"),
        ("p.jsonl", '{"prompt": 5}\n', "line 1: prompt must be text, got int"),
        ("p.jsonl", '{"prompt": "  "}\n', "line 1: the prompt is empty"),
        ("p.jsonl", '{"messages": []}\n', "line 1: the prompt is empty"),
        ("p.jsonl", '{"messages": ["hi"]}\n', "line 1: messages must be a list of objects"),
        ("p.jsonl", '{"token_ids": [1, true]}\n', "line 1: token_ids must be a list of whole numbers"),
        ("p.jsonl", '{"token_ids": []}\n', "line 1: the prompt is empty"),
        ("p.jsonl", '{"prompt": "a", "temprature": 1}\n', "line 1: unknown field 'temprature'"),
        ("p.jsonl", '{"prompt": "a", "n": 2}\n', "line 1: n is set by the probe itself"),
        ("p.jsonl", '{"prompt": "a", "temperature": -1}\n', "line 1: temperature must be between 0 and 100"),
        ("p.jsonl", '{"prompt": "a", "id": "a/b"}\n', "line 1: id must be 1 to 64 letters"),
        ("p.jsonl", '{"prompt": "a", "id": 7}\n', "line 1: id must be"),
        ("p.jsonl", '{"prompt": "a", "id": "x"}\n{"prompt": "b", "id": "x"}\n', "line 2: the id 'x' stands already"),
        ("p.jsonl", '{"prompt": "a", "prompt": "b"}\n', "line 1: the key 'prompt' stands twice"),
        ("p.jsonl", "", "holds no prompt"),
        ("p.txt", "\n \n", "holds no prompt"),
        ("p.txt", b"fine\nbad \xff\n", r"p\.txt, line 2: not valid UTF-8"),
        ("p.txt", '{"prompt": "an object without the suffix"}\n{broken\n', "line 2: not valid JSON"),
    ],
)
def test_a_bad_file_names_file_and_line(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UsageError, match=message):
        read_prompts(path)


def test_a_missing_file(tmp_path):
    with pytest.raises(UsageError, match=r"cannot read .*none\.jsonl"):
        read_prompts(tmp_path / "none.jsonl")


def test_jsonl_rows(tmp_path, mini_target):
    path = tmp_path / "p.jsonl"
    path.write_text(
        '{"id": "a", "prompt": "text", "temperature": 0.7, "max_tokens": 5, "seq_seed": 9}\n'
        "\n"
        '{"token_ids": [3, 4]}\n'
        '{"id": "c", "messages": [{"role": "user", "content": "hi"}], "ignore_eos": true}\n'
    )
    target = mini_target()
    probes = tokenize_prompts(read_prompts(path), target, SamplingParams(max_tokens=20), seed=100)
    assert [probe.id for probe in probes] == ["a", "line-3", "c"]
    assert [probe.token_ids for probe in probes] == [target.tokenize("text"), (3, 4), target.tokenize("hi")]
    assert [probe.sampling.max_tokens for probe in probes] == [5, 20, 20]
    assert [probe.sampling.seq_seed for probe in probes] == [9, 101, 102]
    assert probes[0].sampling.temperature == 0.7
    assert [probe.sampling.ignore_eos for probe in probes] == [False, False, True]
    assert all(probe.sampling.logprobs == 2 for probe in probes)


def test_plain_text_is_one_prompt_a_line(tmp_path):
    path = tmp_path / "p.txt"
    path.write_bytes("first\r\n\nthird \u2028 line\n".encode())
    rows = read_prompts(path)
    assert [(row.id, row.source.value) for row in rows] == [("line-1", "first"), ("line-3", "third \u2028 line")]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('{"token_ids": [1, 101]}', "line 1: token id 101 is outside the model's vocabulary of 101"),
        ('{"token_ids": [-1]}', "token id -1 is outside"),
        ('{"prompt": "abcdefgh", "max_tokens": 995}', "8 prompt tokens and a reply of 995 do not fit .* of 1000"),
        ('{"messages": [{"role": "user", "content": ""}]}', "line 1: the prompt is empty"),
        ('{"prompt": "%s"}' % ("x" * (LONGEST_TEXT + 1)), "line 1: the prompt has 4194305 characters"),
    ],
    ids=["id too large", "id below 0", "over the context", "empty once rendered", "text too long"],
)
def test_what_only_the_tokenizer_can_refuse(tmp_path, mini_target, row, message):
    path = tmp_path / "p.jsonl"
    path.write_text(row + "\n")
    with pytest.raises(UsageError, match=message):
        tokenize_prompts(read_prompts(path), mini_target(), SamplingParams(), seed=0)


def test_the_packaged_prompts_read():
    rows = packaged_prompts()
    assert len(rows) == 4
    assert len({row.id for row in rows}) == 4
