"""Chat templates: the exact prompt, the same every day; and what hostile or broken ones may not do."""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import pytest

from detharness.checkpoints import chat_template, template_process
from detharness.checkpoints.chat_template import (
    DEFAULT_DATE,
    ChatTemplate,
    RenderedPrompt,
    load_template_folder,
    load_template_gguf,
)
from detharness.checkpoints.gguf_file import GgufFile
from detharness.checkpoints.gguf_tokenizer import load_tokenizer_gguf
from detharness.checkpoints.locate import locate_model
from detharness.checkpoints.template_process import TemplateProcess
from detharness.checkpoints.tokenizer import Tokenizer, load_tokenizer_folder
from detharness.errors import CheckpointError, DetharnessError, RequestError

WriteGguf = Callable[..., Path]
USER = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def tokenizer(tiny_folder: Callable[..., Path]) -> Tokenizer:
    return load_tokenizer_folder(tiny_folder("llama"))


@pytest.fixture(scope="module")
def process() -> Iterator[TemplateProcess]:
    """One worker for all tests: starting one takes most of the time."""
    shared = TemplateProcess()
    yield shared
    shared.close()


@pytest.fixture
def render(tokenizer: Tokenizer, process: TemplateProcess) -> Callable[..., RenderedPrompt]:
    def run(source: str, messages: Any = USER, date: datetime.date | None = None, **special: str) -> RenderedPrompt:
        return ChatTemplate(source, "here", special, process=process).render(messages, tokenizer, date=date)

    return run


@pytest.fixture
def fails(render: Callable[..., RenderedPrompt]) -> Callable[..., str]:
    def run(kind: type[DetharnessError], source: str, messages: Any = USER) -> str:
        with pytest.raises(kind) as caught:
            render(source, messages)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    return run


@pytest.fixture(scope="module")
def smollm2() -> tuple[ChatTemplate, Tokenizer]:
    reader = GgufFile(locate_model("smollm2-135m").path).reader
    template = load_template_gguf(reader)
    assert template is not None
    return template, load_tokenizer_gguf(reader)


SYSTEM = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"


def test_smollm2_keeps_its_default_system_turn(smollm2: tuple[ChatTemplate, Tokenizer]) -> None:
    template, tokenizer = smollm2
    prompt = template.render(USER, tokenizer)
    assert prompt.text == f"{SYSTEM}<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert prompt.token_ids == tokenizer.encode_rendered(prompt.text)
    assert [prompt.token_ids.count(token) for token in (1, 2)] == [3, 2]  # <|im_start|> and <|im_end|>, no more.
    assert prompt.date is None
    own = template.render([{"role": "system", "content": "S"}, *USER], tokenizer)
    assert own.text.startswith("<|im_start|>system\nS<|im_end|>\n<|im_start|>user\n")


def test_smollm2_renders_null_and_list_content(smollm2: tuple[ChatTemplate, Tokenizer]) -> None:
    """The template itself raises TypeError for both."""
    template, tokenizer = smollm2
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    prompt = template.render([{"role": "user", "content": parts}, {"role": "assistant", "content": None}], tokenizer)
    assert "<|im_start|>user\na\nb<|im_end|>\n<|im_start|>assistant\n<|im_end|>\n" in prompt.text
    assert len(prompt.notes) == 2


def test_rendered_text_gets_no_second_bos(process: TemplateProcess, tmp_path: Path, tiny_folder: Any) -> None:
    values = json.loads((tiny_folder("llama") / "tokenizer.json").read_text())
    values["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<eos>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<eos>": {"id": "<eos>", "ids": [256], "tokens": ["<eos>"]}},
    }
    tokenizer = Tokenizer(values, where="here")
    template = ChatTemplate("{{ bos_token }}x", "here", {"bos_token": "<eos>"}, process=process)
    assert template.render(USER, tokenizer).token_ids == tokenizer.encode("x")
    assert tokenizer.encode("x").count(256) == 1


def test_the_date_is_frozen_and_recorded(render: Callable[..., RenderedPrompt]) -> None:
    source = "{{ strftime_now('%d %b %Y %H:%M') }}"
    prompt = render(source)
    assert (prompt.text, prompt.date) == ("26 Jul 2024 00:00", "2024-07-26")
    assert DEFAULT_DATE.isoformat() == prompt.date
    other = render(source, date=datetime.date(2031, 1, 2))
    assert (other.text, other.date) == ("02 Jan 2031 00:00", "2031-01-02")
    assert render("x").date is None
    fallback = "{% if strftime_now is defined %}{{ strftime_now('%Y') }}{% else %}none{% endif %}"
    assert render(fallback).text == "2024"


@pytest.mark.parametrize(
    ("source", "text"),
    [
        # Blocks leave neither their line break nor the spaces before them.
        ("  {% if true %}\n  a\n  {% endif %}\nb", "  a\nb"),
        ("{% for m in messages %}{% continue %}x{% endfor %}y", "y"),
        ("{% for m in [1, 2, 3] %}{{ m }}{% break %}{% endfor %}", "1"),
        ("{% generation %}a{% endgeneration %}b", "ab"),
        ("{{ {'b': '<é&\\'>', 'a': [1, none, true]} | tojson }}", '{"b": "<é&\'>", "a": [1, null, true]}'),
        ("{{ {'a': 1} | tojson(indent=2) }}", '{\n  "a": 1\n}'),
        ("{{ 'é' | tojson(ensure_ascii=true) }}", '"\\u00e9"'),
        ("{{ messages[::-1][0].content.lower() }}", "hi"),
        ("{{ 'a b'.split(' ')[-1] }}{{ 'ab'.startswith('a') }}", "bTrue"),
        ("{% for k, v in messages[0].items() %}{{ k }}={{ v }};{% endfor %}", "role=user;content=Hi;"),
        ("{{ messages[0]['content'] | trim }}<b>", "Hi<b>"),  # Nothing is escaped.
        ("{% set ns = namespace(n=0) %}{% for i in range(3) %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}", "3"),
        ("{% macro m(x) %}[{{ x }}]{% endmacro %}{{ m(1) }}", "[1]"),
        ("{% if tools is none and not tools %}no tools{% endif %}{{ add_generation_prompt }}", "no toolsTrue"),
    ],
)
def test_the_environment_is_the_one_templates_are_written_for(
    source: str, text: str, render: Callable[..., RenderedPrompt]
) -> None:
    assert render(source).text == text


def test_special_tokens_reach_the_template(render: Callable[..., RenderedPrompt]) -> None:
    assert render("{{ bos_token }}{{ eos_token }}x", bos_token="<s>", eos_token="</s>").text == "<s></s>x"


CALL = {"name": "f", "arguments": {"é": 1, "a": "<"}}


@pytest.mark.parametrize("arguments", [CALL["arguments"], json.dumps(CALL["arguments"])])
@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ messages[0].tool_calls[0].function.arguments | tojson }}", '{"é": 1, "a": "<"}'),
        # A template that joins the arguments to a text cannot take an object.
        ("{{ 'args: ' + messages[0].tool_calls[0].function.arguments }}", 'args: {"é": 1, "a": "<"}'),
    ],
)
def test_tool_call_arguments_may_be_text_or_an_object(
    arguments: Any, source: str, text: str, render: Callable[..., RenderedPrompt]
) -> None:
    call = {"type": "function", "function": {**CALL, "arguments": arguments}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    assert render(source, [message]).text == text
    assert call["function"] == {**CALL, "arguments": arguments}  # The caller's message stays as it was.


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([], "a list of at least one message"),
        ("Hi", "a list of at least one message"),
        (["Hi"], "message 1 must be an object"),
        ([*USER, {"content": "x"}], "message 2 must have a 'role'"),
        ([{"role": "user", "content": 3}], "message 1: content must be text or a list of text parts, got int"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}],
            "message 1, part 1 is of type 'image_url'",
        ),
        ([{"role": "user", "content": [{"type": "text"}]}], "message 1, part 1 must hold text"),
        ([{"role": "user", "content": "\ud800"}], "message 1 holds a value that JSON cannot hold"),
        ([{"role": "user", "content": "x", "extra": float("nan")}], "message 1 holds a value that JSON cannot hold"),
        ([{"role": "assistant", "tool_calls": "f"}], "message 1: tool_calls must be a list of objects"),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"arguments": "{"}}]}],
            "message 1, tool call 1: the arguments are not valid JSON",
        ),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"arguments": "[1]"}}]}],
            "message 1, tool call 1: the arguments must be a JSON object",
        ),
    ],
)
def test_messages_that_no_template_can_take(messages: Any, said: str, fails: Callable[..., str]) -> None:
    assert said in fails(RequestError, "x", messages)


@pytest.mark.parametrize(
    ("kind", "source", "said"),
    [
        (
            RequestError,
            "\n{{ raise_exception('roles must\nalternate') }}",
            "(here, line 2) refuses these messages: roles must",
        ),
        (RequestError, "a\n\n{{ messages[7].x }}", "(here, line 3) fails on these messages (UndefinedError"),
        (RequestError, "{{ 'a' + 1 }}", "fails on these messages (TypeError"),
        (RequestError, "", "renders these messages to nothing"),
        (CheckpointError, "x\n{% if %}", "(here, line 2) is not valid jinja2"),
        (CheckpointError, "{% for x in y %}", "is not valid jinja2"),
        (CheckpointError, "{{ ''.__class__.__mro__ }}", "does what the sandbox forbids"),
        (CheckpointError, "{{ cycler.__init__.__globals__.os.popen('id') }}", "does what the sandbox forbids"),
        (CheckpointError, "{{ messages.append(1) }}", "does what the sandbox forbids"),
        (CheckpointError, "{{ messages[0].update(role='x') }}", "does what the sandbox forbids"),
        (RequestError, "{% include '/etc/passwd' %}", "fails on these messages (TypeError: no loader"),
        (RequestError, "{{ '{0.__class__}'.format(1) }}", "renders these messages to nothing"),
        # Chance has no place in a prompt.
        (CheckpointError, "{{ [1, 2] | random }}", "No filter named 'random'"),
        (RequestError, "{{ lipsum() }}", "'lipsum' is undefined"),
        (RequestError, "{% for i in range(1000000) %}{% endfor %}", "The sandbox blocks ranges larger"),
        (
            CheckpointError,
            "{% for a in range(9999) %}{% for b in range(9999) %}xxxx{% endfor %}{% endfor %}",
            "4194304",
        ),
        (CheckpointError, "{{ 'x' * 5000000 }}", "writes more than 4194304 characters"),
        (CheckpointError, "{{ ('x' * 3000000000) | length }}", "needs more than 1 GiB of memory"),
    ],
)
def test_broken_and_hostile_templates(
    kind: type[DetharnessError],
    source: str,
    said: str,
    fails: Callable[..., str],
    render: Callable[..., RenderedPrompt],
) -> None:
    message = fails(kind, source)
    assert said in message
    assert "here" in message
    assert render("still {{ messages[0].content }}").text == "still Hi"


def test_a_template_that_never_ends_is_stopped_and_the_next_one_renders(
    tokenizer: Tokenizer,
) -> None:
    """The loops write nothing, so neither the sandbox nor the limit on characters can see them."""
    process = TemplateProcess(time_limit=1.0)
    loops = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    start = time.monotonic()
    with pytest.raises(CheckpointError, match="does not end within 1 seconds"):
        ChatTemplate(loops, "here", {}, process=process).render(USER, tokenizer)
    assert time.monotonic() - start < 8
    process.time_limit = template_process.TIME_LIMIT
    assert ChatTemplate("x", "here", {}, process=process).render(USER, tokenizer).text == "x"
    process.close()


def test_a_worker_that_dies_is_reported_and_replaced(tokenizer: Tokenizer) -> None:
    process = TemplateProcess()
    template = ChatTemplate("x", "here", {}, process=process)
    template.render(USER, tokenizer)
    assert process._process is not None
    process._process.kill()
    process._process.wait()
    with pytest.raises(CheckpointError, match="crashed the process that renders it"):
        template.render(USER, tokenizer)
    assert template.render(USER, tokenizer).text == "x"
    process.close()


def test_the_worker_ends_with_its_owner(tokenizer: Tokenizer) -> None:
    process = TemplateProcess()
    ChatTemplate("x", "here", {}, process=process).render(USER, tokenizer)
    worker = process._process
    assert worker is not None
    assert worker.poll() is None
    del process
    assert worker.poll() is not None


def test_no_template_is_none(tmp_path: Path, write_gguf: WriteGguf) -> None:
    assert load_template_folder(tmp_path) is None
    (tmp_path / "tokenizer_config.json").write_text("{}")
    assert load_template_folder(tmp_path) is None
    assert load_template_gguf(gguf.GGUFReader(write_gguf(tmp_path / "m.gguf", {}))) is None


def loaded(folder: Path) -> ChatTemplate:
    template = load_template_folder(folder)
    assert template is not None
    return template


def test_folder_templates_and_which_one_is_used(tmp_path: Path) -> None:
    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps({"chat_template": "one", "bos_token": "<s>", "eos_token": {"content": "</s>"}}))
    template = loaded(tmp_path)
    assert (template.source, template.special_tokens) == ("one", {"bos_token": "<s>", "eos_token": "</s>"})
    assert template.notes == ("chat template: tokenizer_config.json",)
    named = [{"name": "tool_use", "template": "two"}, {"name": "default", "template": "three"}]
    config.write_text(json.dumps({"chat_template": named}))
    template = loaded(tmp_path)
    assert template.source == "three"
    assert "chat template: not used: 'tool_use'" in template.notes
    (tmp_path / "chat_template.jinja").write_text("four é")
    template = loaded(tmp_path)
    assert template.source == "four é"
    assert "chat template: tokenizer_config.json holds another one, which is not used" in template.notes
    assert template.digest != ChatTemplate("three", "here", {}).digest
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"bos_token": "<b>"}))
    assert loaded(tmp_path).special_tokens == {"bos_token": "<b>"}


@pytest.mark.parametrize(
    ("stated", "said"),
    [
        ([{"name": "tool_use", "template": "x"}], "names 'tool_use' but no 'default'"),
        (3, "must be text or a list of objects"),
        ([{"name": "default"}], "must be text or a list of objects"),
    ],
)
def test_damaged_folder_templates(tmp_path: Path, stated: Any, said: str) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": stated}))
    with pytest.raises(CheckpointError) as caught:
        load_template_folder(tmp_path)
    assert said in str(caught.value)
    assert "tokenizer_config.json" in str(caught.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"\xff\xfe", "is not UTF-8 text"), (b"version https://git-lfs.github.com/spec/v1\n", "is a Git-LFS pointer")],
)
def test_damaged_template_file(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "chat_template.jinja").write_bytes(content)
    with pytest.raises(CheckpointError, match=said):
        load_template_folder(tmp_path)


def test_gguf_templates_and_their_special_tokens(tmp_path: Path, write_gguf: WriteGguf) -> None:
    metadata = {"tokenizer.chat_template": "x", "tokenizer.chat_templates": ["tool_use"]}
    template = load_template_gguf(gguf.GGUFReader(write_gguf(tmp_path / "m.gguf", {}, metadata=metadata)))
    assert template is not None
    assert (template.source, template.special_tokens) == ("x", {"eos_token": "<eos>"})
    assert "chat template: not used: 'tool_use'" in template.notes
    bad = write_gguf(tmp_path / "bad.gguf", {}, metadata={"tokenizer.chat_template": 3})
    with pytest.raises(CheckpointError, match=r"tokenizer\.chat_template is not a text"):
        load_template_gguf(gguf.GGUFReader(bad))


def test_no_clock_is_read(render: Callable[..., RenderedPrompt], monkeypatch: pytest.MonkeyPatch) -> None:
    """The date is an argument of the request: two days give the same answer because no day is asked for."""
    monkeypatch.setattr(chat_template, "DEFAULT_DATE", datetime.date(1999, 12, 31))
    assert render("{{ strftime_now('%Y-%m-%d') }}").text == "1999-12-31"
