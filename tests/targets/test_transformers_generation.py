"""transformers answers what the engine answers, draws by the seed of the request alone, and gives its thread back."""

import asyncio
import json
import shutil

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from detharness.errors import CheckpointError, UsageError
from detharness.targets import transformers_generation
from detharness.targets.endpoint.openai_endpoint import OpenAIEndpoint
from detharness.targets.engine import EngineTarget
from detharness.targets.engine_generation import EngineGeneration
from detharness.targets.generation import GenerationError, GenerationRequest
from detharness.targets.resolve_generation import resolve_generation
from detharness.targets.transformers_generation import TransformersGeneration

TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
EOS = 256  # Of the tiny checkpoints; ids above it are padding.
PROMPTS = ("What is 30 + 3?", "Once upon a time", "def f(x):")


def ask(content=PROMPTS[0], max_tokens=24, **fields):
    return GenerationRequest(messages=[{"role": "user", "content": content}], max_tokens=max_tokens, **fields)


@pytest.fixture(scope="module")
def folder(tiny_folder, tmp_path_factory):
    """A tiny model with a chat template, and a generation config that must not matter.

    The padded rows of its vocabulary lose every time: transformers may draw one, the engine never does.
    """
    folder = tmp_path_factory.mktemp("chatty") / "model"
    shutil.copytree(tiny_folder("llama"), folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"][EOS + 1 :] = 0.0
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    odd = {"do_sample": True, "temperature": 9.0, "top_k": 3, "repetition_penalty": 5.0, "max_new_tokens": 2}
    (folder / "generation_config.json").write_text(json.dumps(odd))
    return folder


@pytest.fixture(scope="module")
def target(folder):
    opened = TransformersGeneration(str(folder), "fp32")
    yield opened
    asyncio.run(opened.close())


def replies(target, *requests):
    """The replies to ``requests``, asked all at once."""

    async def go():
        return await asyncio.gather(*(target.generate(request) for request in requests))

    return asyncio.run(go())


def of_the_engine(model, *requests):
    async def go():
        engine = EngineGeneration(EngineTarget(str(model), "invariant", "fp32"))
        try:
            return await asyncio.gather(*(engine.generate(request) for request in requests))
        finally:
            await engine.close()

    return asyncio.run(go())


def same_reply(ours, theirs):
    """Whether two computations of one model agree: in all that is discrete, and in logprobs within fp32 rounding."""
    fields = ("text", "token_ids", "finish_reason", "prompt_tokens", "completion_tokens", "reasoning")
    discrete = [getattr(ours, name) == getattr(theirs, name) for name in fields]
    # Sums of some hundred fp32 terms of size 10 in two orders: errors of about 1e-5; a wrong row is off by about 1.
    return all(discrete) and np.allclose(ours.logprobs, theirs.logprobs, rtol=0, atol=1e-3)


def test_greedy_replies_are_those_of_the_engine(target, folder):
    requests = [ask(prompt) for prompt in PROMPTS]
    for ours, theirs in zip(replies(target, *requests), of_the_engine(folder, *requests), strict=True):
        assert same_reply(ours, theirs)
        assert len(ours.token_ids) > 2  # So the folder's own generation config did not decide.


def test_a_stop_string_ends_a_reply_as_in_the_engine(target, folder):
    whole = replies(target, ask())[0]
    stop = whole.text[4:6]
    requests = [ask(stop=(stop, "never there"))]
    ours, theirs = replies(target, *requests)[0], of_the_engine(folder, *requests)[0]
    assert same_reply(ours, theirs)
    assert ours.finish_reason == "stop"
    assert ours.text == whole.text[: whole.text.index(stop)]


def test_the_seed_of_a_request_decides_its_reply_in_any_order(target):
    hot = [ask(temperature=1.5, seed=seed) for seed in (1, 2**63 - 1, 1)]
    before = torch.random.get_rng_state()
    one, two, again = replies(target, *hot)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert one == again
    assert one.token_ids != two.token_ids
    assert replies(target, hot[1], hot[0]) == [two, one]


def test_without_a_seed_replies_differ(target):
    assert len({reply.token_ids for reply in replies(target, *[ask(temperature=2.0)] * 3)}) > 1


@pytest.mark.parametrize("narrow", [{"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}])
def test_a_filter_that_leaves_one_token_makes_sampling_greedy(target, narrow):
    greedy, drawn = replies(target, ask(), ask(temperature=1.5, seed=3, **narrow))
    assert drawn == greedy


def test_without_a_filter_any_token_may_come(target):
    """A default top-k of 50 would leave out most of 264 tokens that are nearly equally likely."""
    flat = replies(target, *(ask(max_tokens=40, temperature=100.0, seed=seed) for seed in range(5)))
    assert len({token for reply in flat for token in reply.token_ids}) > 100


def test_a_reply_ends_at_the_context_and_a_prompt_beyond_it_is_refused(target):
    assert target.context_length == 512
    reply = replies(target, ask("a" * 500, max_tokens=100))[0]
    assert (reply.prompt_tokens, reply.completion_tokens, reply.finish_reason) == (500, 12, "length")
    with pytest.raises(GenerationError, match="leaves no room in the context of 512") as refused:
        replies(target, ask("a" * 512))
    assert (refused.value.kind, refused.value.retriable) == ("refused", False)


def test_images_are_refused(target):
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    with pytest.raises(GenerationError) as refused:
        replies(target, ask([part]))
    assert (refused.value.kind, refused.value.retriable) == ("refused", False)
    assert not target.accepts_images


def test_prompts_are_counted_as_they_are_rendered(target):
    assert target.count_prompt_tokens(ask("twelve bytes").messages) == 12


@pytest.fixture
def drawn(monkeypatch):
    """Every token that is drawn, as it is."""
    tokens = []
    read = transformers_generation._Reading.__call__

    def read_and_tell(self, input_ids, scores, **fields):
        tokens.append(int(input_ids[0, -1]))
        return read(self, input_ids, scores, **fields)

    monkeypatch.setattr(transformers_generation._Reading, "__call__", read_and_tell)
    return tokens


async def started(target, request, drawn):
    """The task that generates ``request``, once its first token is drawn."""
    task = asyncio.create_task(target.generate(request))
    while not drawn:
        await asyncio.sleep(0.001)
    return task


def test_a_cancelled_request_gives_the_thread_back(target, drawn):
    async def go():
        slow = await started(target, ask(max_tokens=400), drawn)
        slow.cancel()
        return await target.generate(ask(max_tokens=1))

    assert asyncio.run(go()).completion_tokens == 1
    assert len(drawn) < 400


def test_closing_ends_what_runs(folder, drawn):
    async def go():
        target = TransformersGeneration(str(folder), "fp32")
        running = await started(target, ask(max_tokens=400), drawn)
        waiting = asyncio.create_task(target.generate(ask()))
        await asyncio.sleep(0)  # It is in the queue now.
        await target.close()
        after = target.generate(ask())
        return await asyncio.gather(running, waiting, after, return_exceptions=True)

    assert [error.kind for error in asyncio.run(go())] == ["closed"] * 3
    assert len(drawn) < 400


def test_it_is_described_by_the_digests_that_the_engine_gives(target, folder):
    ours, theirs = target.describe(), EngineTarget(str(folder), "torch", "fp32").describe()
    shared = ("model", "kind", "model_digest", "tokenizer_digest", "eos_token_ids", "context_length", "chat_template")
    assert {name: ours[name] for name in shared} == {name: theirs[name] for name in shared}
    assert (ours["form"], ours["dtype"], ours["one_by_one"]) == ("transformers", "fp32", True)
    assert ours["backend"].startswith("transformers 5.")


def test_nothing_is_drawn_over_the_screen(folder, tmp_path, capfd, caplog):
    for model in (folder, write_gguf(tmp_path / "tiny.gguf", folder)):
        asyncio.run(TransformersGeneration(str(model), "bf16").close())
    assert capfd.readouterr() == ("", "")
    assert not caplog.records


def test_a_gguf_file_is_answered_as_the_engine_answers_it(folder, tmp_path):
    model = write_gguf(tmp_path / "tiny.gguf", folder)
    target = TransformersGeneration(str(model), "fp32")
    assert target.describe()["kind"] == "gguf"
    assert same_reply(replies(target, ask())[0], of_the_engine(model, ask())[0])
    asyncio.run(target.close())


def write_gguf(path, folder):
    """The tensors of ``folder`` under their GGUF names; Q and K rows count as permuted, which makes another model."""
    config = json.loads((folder / "config.json").read_text())
    tokens = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    padding = [f"[PAD{index}]" for index in range(len(tokens) + 2, config["vocab_size"])]
    writer.add_token_list([*sorted(tokens, key=tokens.__getitem__), "<eos>", "th", *padding])
    writer.add_token_types([1] * len(tokens) + [3, 1] + [5] * len(padding))
    writer.add_token_merges(["t h"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_chat_template(TEMPLATE)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    for name, tensor in load_file(folder / "model.safetensors").items():
        writer.add_tensor(names.get_name(name, (".weight",)), tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_precision_that_transformers_does_not_have_here_is_refused(folder):
    with pytest.raises(UsageError, match="transformers runs in fp32 or bf16 here, not in bf16w"):
        TransformersGeneration(str(folder), "bf16w")


def test_a_model_that_transformers_does_not_know_is_refused_in_one_line(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "model")
    (tmp_path / "model" / "config.json").write_text('{"model_type": "unheard_of"}')
    with pytest.raises(CheckpointError, match=r"transformers cannot open .*unheard_of") as refused:
        TransformersGeneration(str(tmp_path / "model"), "fp32")
    assert "\n" not in str(refused.value)


def test_weights_that_are_missing_are_not_made_up(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, tmp_path / "model" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"1 weights missing .* first model\.layers\.1\.mlp\.up_proj\.weight"):
        TransformersGeneration(str(tmp_path / "model"), "fp32")


def test_a_model_without_a_chat_template_answers_no_conversation(tiny_folder):
    target = TransformersGeneration(str(tiny_folder("llama")), "fp32")
    with pytest.raises(GenerationError, match="has no chat template"):
        replies(target, ask())
    asyncio.run(target.close())


def test_each_form_of_a_target_opens_what_it_names(folder):
    options = {"kernels": "torch", "dtype": "fp32"}
    engine = resolve_generation(f"engine:{folder}", model=None, **options)
    native = resolve_generation(f"hf:{folder}", model=None, **options)
    endpoint = resolve_generation("https://host/v1", model="m", **options)
    assert [type(one) for one in (engine, native, endpoint)] == [
        EngineGeneration,
        TransformersGeneration,
        OpenAIEndpoint,
    ]
    for one in (engine, native, endpoint):
        asyncio.run(one.close())


@pytest.mark.parametrize(
    ("text", "model", "sentence"),
    [
        ("smollm2-135m", None, "a target is engine:MODEL, hf:MODEL, or an OpenAI-compatible base URL"),
        ("engine:", None, "a target is engine:MODEL"),
        ("transformers:", None, "a target is engine:MODEL"),
        ("ftp://host/v1", None, "a target is engine:MODEL"),
        ("http://host/v1", None, "give --model"),
        ("engine:smollm2-135m", "m", "leave it out"),
    ],
)
def test_a_target_of_no_known_form_is_refused_by_its_form(text, model, sentence):
    with pytest.raises(UsageError, match=sentence):
        resolve_generation(text, model=model, kernels="torch", dtype="fp32")
