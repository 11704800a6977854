"""transformers' own paths: what is read of them is what they computed, and nobody's manager touches anybody else."""

import pytest
import torch
from transformers import AttentionInterface
from transformers.generation.continuous_batching import ContinuousBatchingManager
from transformers.generation.continuous_batching.input_outputs import ContinuousBatchingIOs

from detharness.errors import CheckpointError, RequestError, UsageError
from detharness.targets.paths import PathError, PathRequest
from detharness.targets.transformers_continuous import ContinuousPlay, twin
from detharness.targets.transformers_probe import TransformersPaths

LENGTHS = (5, 21, 9, 13)


@pytest.fixture(scope="module")
def target(tiny_folder):
    return TransformersPaths(str(tiny_folder("llama")), "fp32")


def request(name="a", length=9, max_tokens=8, **fields):
    return PathRequest(name, tuple(range(10, 10 + length)), max_tokens, **fields)


REQUESTS = [request(f"r{length}", length) for length in LENGTHS]


def forced_rows(target, prompt, reply):
    """The logits that the reply's tokens are chosen from, by one plain forward over prompt and reply."""
    with torch.no_grad():
        logits = target._model.module(torch.tensor([prompt + reply[:-1]])).logits
    return logits[0, len(prompt) - 1 :]


PATHS = {
    "alone": lambda target: {name: reply for r in REQUESTS for name, reply in target.generate([r]).replies.items()},
    "padded wider": lambda target: {
        name: reply for r in REQUESTS for name, reply in target.generate([r], pad_to=40).replies.items()
    },
    "padded batch": lambda target: target.generate(REQUESTS).replies,
    "continuous batching": lambda target: target.continuous_batching(REQUESTS).replies,
}


@pytest.mark.parametrize("path", PATHS)
def test_what_is_read_on_every_path_is_what_the_model_says(target, path):
    replies = PATHS[path](target)
    assert list(replies) == [request.request_id for request in REQUESTS]
    for request in REQUESTS:
        reply = replies[request.request_id]
        assert len(reply.token_ids) == len(reply.logits) == request.max_tokens
        rows = forced_rows(target, request.token_ids, reply.token_ids)
        # Other orders of the same fp32 sums of size 10: errors of about 1e-5; another row is off by about 1.
        assert torch.allclose(torch.from_numpy(reply.logits), rows, rtol=0, atol=1e-3)
        assert reply.token_ids == tuple(reply.logits.argmax(-1).tolist())
        raw = torch.from_numpy(reply.logits).double().log_softmax(-1)
        best = raw.topk(2).values
        assert reply.logprobs == pytest.approx(raw.max(-1).values, abs=1e-5)  # fp32 against fp64.
        assert reply.gaps == pytest.approx(best[:, 0] - best[:, 1], abs=1e-5)


def test_the_forward_passes_show_who_was_padded_and_by_how_much(target):
    run = target.generate([request("long", 21), request("short", 5)])
    assert [forward.requests for forward in run.forwards] == [("long", "short")] * 8
    assert [forward.tokens for forward in run.forwards] == [(21, 5)] + [(1, 1)] * 7
    assert {forward.padding for forward in run.forwards} == {(0, 16)}
    assert target.generate([request(length=9)], pad_to=30).forwards[0].padding == (21,)
    assert target.generate([request(length=9)], pad_to=3).forwards[0].padding == (0,)


def test_the_manager_forms_the_batch_that_was_asked_for_every_time(target):
    requests = [request("a", 5), request("b", 9, watched=False), request("late", 7, arrives=3)]
    for _ in range(3):
        run = target.continuous_batching(requests)
        assert [forward.requests for forward in run.forwards[:4]] == [("a", "b")] * 3 + [("a", "b", "late")]
        assert [forward.tokens for forward in run.forwards[:4]] == [(5, 9), (1, 1), (1, 1), (1, 1, 7)]
        assert [forward.requests for forward in run.forwards[8:]] == [("late",)] * 3
        assert list(run.replies) == ["a", "late"]


def test_a_reply_ends_at_its_end_token_where_it_may_and_nowhere_else(target):
    end = target._model.end_tokens[0]
    free = target.generate([request(max_tokens=12)]).replies["a"]
    target._model.end_tokens = (free.token_ids[4],)
    try:
        kept, cut = request("kept", max_tokens=12), request("cut", max_tokens=12, ignore_eos=False)
        for replies in (target.generate([kept, cut]).replies, target.continuous_batching([kept, cut]).replies):
            at = free.token_ids.index(free.token_ids[4])
            assert replies["kept"].token_ids == free.token_ids
            assert not replies["kept"].stopped
            assert replies["cut"].token_ids == free.token_ids[: at + 1]
            assert replies["cut"].stopped
            assert len(replies["cut"].logits) == at + 1
            assert replies["cut"].text == target._model.tokenizer.decode(free.token_ids[:at])
    finally:
        target._model.end_tokens = (end,)


def _everyone(module, query, key, value, attention_mask, **fields):
    """Attention that sees the future: what a forward ran while a manager was attached (transformers issue 48296)."""
    groups = query.shape[1] // key.shape[1]
    key, value = (tensor.repeat_interleave(groups, 1) for tensor in (key, value))
    return torch.nn.functional.scaled_dot_product_attention(query, key, value).transpose(1, 2), None


def test_a_manager_that_changes_its_models_attention_changes_no_other_forward(tiny_folder, monkeypatch):
    target = TransformersPaths(str(tiny_folder("llama")), "fp32")
    prompt = torch.tensor([REQUESTS[1].token_ids])

    def logits(module):
        with torch.no_grad():
            return module(prompt).logits

    AttentionInterface.register("everyone", _everyone)
    during = {}

    def poison(manager, model, auto_switch_to_flash=True):
        model.config._attn_implementation = "everyone"
        during["generating"] = logits(target._model.module)
        during["batching"] = logits(model)
        model.config._attn_implementation = "sdpa"

    before, alone = logits(target._model.module), target.generate(REQUESTS[:1]).replies
    monkeypatch.setattr(ContinuousBatchingManager, "switch_to_cb_friendly_attn", poison)
    target.continuous_batching(REQUESTS)
    assert not torch.equal(during["batching"], before)  # The trap bites where a model is shared.
    assert torch.equal(during["generating"], before)
    again = target.generate(REQUESTS[:1]).replies
    assert (again["r5"].logits == alone["r5"].logits).all()


def test_the_twin_holds_the_same_weights_and_a_configuration_of_its_own(target):
    one, two = target._model.module, twin(target._model.module)
    assert [id(weight) for weight in one.parameters()] == [id(weight) for weight in two.parameters()]
    assert one.config is not two.config
    assert one.model.layers[0].self_attn.config is not two.model.layers[0].self_attn.config


@pytest.mark.parametrize(
    ("owner", "method", "reason"),
    [
        (ContinuousBatchingManager, "switch_to_cb_friendly_attn", "RuntimeError: not here"),
        (ContinuousBatchingManager, "_generation_step", "RuntimeError: not here"),
        (ContinuousBatchingManager, "_create_batch_processor", "RuntimeError"),
        (ContinuousBatchingIOs, "prepare_batch_tensors", "RuntimeError: not here"),
    ],
)
def test_a_manager_that_cannot_run_says_why_and_leaves_no_thread(target, monkeypatch, capfd, owner, method, reason):
    def fail(*args, **fields):
        raise RuntimeError("not here")

    with monkeypatch.context() as patch:
        patch.setattr(owner, method, fail)
        with pytest.raises(PathError, match=rf"does not run under transformers 5\.\S+: {reason}"):
            target.continuous_batching(REQUESTS)
    assert "Traceback" not in capfd.readouterr().err
    assert len(target.continuous_batching(REQUESTS).replies) == len(REQUESTS)


def test_rows_that_cannot_be_told_apart_are_refused(target, monkeypatch):
    look = ContinuousPlay._look
    monkeypatch.setattr(ContinuousPlay, "_look", lambda self, manager, logits: look(self, manager, logits[:, :-1]))
    with pytest.raises(PathError, match=r"logits \[1, 3, 264\] for 4 requests"):
        target.continuous_batching(REQUESTS)


def test_it_is_described_with_its_library_and_refuses_what_it_cannot_open(target, tiny_folder):
    described = target.describe()
    assert (described["pad_token_id"], described["kv_page_size"]) == (256, 16)
    assert target.backend.startswith("transformers 5.")
    assert target.backend.endswith(", attention sdpa")
    assert target.with_dtype("fp32") is target
    assert target.with_dtype("bf16").dtype == "bf16"
    with pytest.raises(UsageError, match="fp32 or bf16 here, not in bf16w"):
        target.with_dtype("bf16w")
    with pytest.raises(CheckpointError):
        TransformersPaths("/nowhere/at/all", "fp32")
    with pytest.raises(RequestError, match=r"has no chat template.*or 'prompt'"):
        target.render_chat([{"role": "user", "content": "hi"}])
