"""The engine loop end to end on tiny models: budgets, stops, streaming, logprobs, abort, refusals."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from detharness.engine.loop import Engine
from detharness.engine.params import EngineConfig, MemoryPolicy, PrefixCaching, SamplingParams
from detharness.engine.sequence import Request
from detharness.errors import CapacityError, RequestError, UsageError
from detharness.targets.protocol import Arrival


@pytest.fixture
def target(tiny_target):
    return tiny_target("llama", "invariant", "fp32")


def engine_for(target, **config) -> Engine:
    return Engine(
        target.decoder,
        target.checkpoint.tokenizer,
        target.checkpoint.eos_token_ids,
        EngineConfig(**{"num_blocks": 64, **config}),
    )


def run(engine: Engine, *requests: Request):
    for request in requests:
        engine.add(request)
    records, done = [], []
    while engine.busy:
        records.append(engine.step())
        done.extend(engine.take_finished())
    return {(d.request_id, d.sample_index): d for d in done}, records


def greedy(**more) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 8, "ignore_eos": True, **more})


def test_one_budget_mixes_prefill_chunks_and_decodes_in_a_step(target):
    engine = engine_for(target, max_step_tokens=6)
    engine.add(Request("early", (1, 2, 3), greedy()))
    first = engine.step()
    engine.add(Request("late", tuple(range(20)), greedy()))
    second = engine.step()
    assert [g.kind for g in first.groups] == ["prefill"]
    assert [(g.kind, g.start_position, len(g.token_ids)) for g in second.groups] == [
        ("decode", 3, 1),
        ("prefill", 0, 5),
    ]
    assert second.groups[1].sampled == ()
    while engine.busy:
        assert engine.step().rows <= 6


def test_reserve_never_preempts_and_gives_the_tokens_of_recompute(target):
    requests = [Request(str(i), tuple(range(i, i + 9)), greedy(max_tokens=20, logprobs=0)) for i in range(4)]
    results = {}
    for policy in MemoryPolicy:
        done, records = run(engine_for(target, num_blocks=9, page_size=4, memory_policy=policy), *requests)
        results[policy] = {key: (d.token_ids, d.logprobs) for key, d in done.items()}
        preemptions = sum(len(r.preempted) for r in records)
        assert (preemptions == 0) == (policy is MemoryPolicy.RESERVE)
    assert results[MemoryPolicy.RESERVE] == results[MemoryPolicy.RECOMPUTE]


def test_a_cold_cold_warm_triplet_hits_once_and_says_how_much(target):
    prompt = tuple(range(50, 90))
    engine = engine_for(target, page_size=8, prefix_caching=PrefixCaching.ON)
    hits = []
    for name in ("first", "second"):
        done, _ = run(engine, Request(name, prompt, greedy()))
        hits.append(done[name, 0].cached_tokens)
    assert hits == [0, 32]


def test_finished_pages_return_to_the_pool(target):
    engine = engine_for(target, num_blocks=4, page_size=8)
    for turn in range(5):
        done, _ = run(engine, Request(str(turn), tuple(range(20)), greedy()))
        assert len(done[str(turn), 0].token_ids) == 8


def test_an_end_token_ends_and_ignore_eos_does_not(target):
    free, _ = run(engine_for(target), Request("free", (7, 8, 9), greedy(max_tokens=12)))
    tokens = free["free", 0].token_ids
    stop = tokens[4]
    first = tokens.index(stop)
    engine = Engine(target.decoder, target.checkpoint.tokenizer, (stop,), EngineConfig(num_blocks=64))
    done, _ = run(
        engine,
        Request("ends", (7, 8, 9), greedy(max_tokens=12, ignore_eos=False)),
        Request("ignores", (7, 8, 9), greedy(max_tokens=12)),
        Request("stop id", (7, 8, 9), greedy(max_tokens=12, stop_token_ids=(tokens[2],))),
    )
    assert done["ends", 0].token_ids == tokens[: first + 1]
    assert (done["ends", 0].finish_reason, done["ends", 0].stop_reason) == ("stop", stop)
    assert done["ignores", 0].token_ids == tokens
    assert done["stop id", 0].token_ids == tokens[: tokens.index(tokens[2]) + 1]


def test_a_stop_string_is_cut_and_streaming_never_shows_its_beginning(target):
    plain, _ = run(engine_for(target), Request("plain", (70, 71), greedy(max_tokens=30)))
    text = plain["plain", 0].text
    stop = text[5:8]
    shown: list[str] = []
    reasons: list[str | None] = []

    def listen(event) -> None:
        shown.append(event.text)
        reasons.append(event.finish_reason)

    done, _ = run(engine_for(target), Request("cut", (70, 71), greedy(max_tokens=30, stop=(stop,)), on_token=listen))
    assert done["cut", 0].text == text[: text.index(stop)]
    assert "".join(shown) == done["cut", 0].text
    assert reasons[-1] == "stop"
    assert set(reasons[:-1]) == {None}
    assert done["cut", 0].stop_reason == stop


def test_streamed_text_adds_up_to_the_whole(target):
    shown: list[str] = []
    done, _ = run(
        engine_for(target),
        Request("s", (9,), greedy(max_tokens=40), on_token=lambda event: shown.append(event.text)),
    )
    assert "".join(shown) == done["s", 0].text
    assert len(shown) == 40


def test_logprobs_are_the_log_softmax_of_the_captured_row(target):
    done, _ = run(
        engine_for(target),
        Request("r", (1, 2, 3), greedy(logprobs=3, processed_logprobs=True, temperature=0.7, seq_seed=3), True),
    )
    completion = done["r", 0]
    rows = torch.log_softmax(torch.from_numpy(completion.logits).double(), dim=-1)
    for row, entry in zip(rows, completion.logprobs, strict=True):
        # One fp32 rounding of values below 32 in magnitude is at most 1e-6.
        assert abs(row[entry.token_id].item() - entry.logprob) < 2e-6
        assert [i for i, _ in entry.top] == torch.topk(row, 3).indices.tolist()
        tempered = torch.log_softmax(torch.from_numpy(completion.logits).double()[len(entry.top) - 3] / 0.7, dim=-1)
        assert tempered.shape == row.shape
        assert entry.processed_logprob <= 0


def test_prompt_logprobs_score_every_prompt_token_whatever_the_chunk_and_the_cache(target):
    prompt = tuple(range(30, 70))
    seen = []
    for config in ({}, {"max_step_tokens": 7}, {"prefix_caching": PrefixCaching.ON, "page_size": 8}):
        engine = engine_for(target, **config)
        run(engine, Request("warm up the cache", prompt, greedy()))
        done, _ = run(engine, Request("p", prompt, greedy(prompt_logprobs=2)))
        entries = done["p", 0].prompt_logprobs
        assert entries[0] is None
        assert [e.token_id for e in entries[1:]] == list(prompt[1:])
        assert done["p", 0].cached_tokens == 0, "prompt logprobs are computed, never taken from a hit"
        seen.append(entries)
    assert seen[0] == seen[1] == seen[2]


def test_padded_vocabulary_ids_are_never_drawn(target):
    limit = target.vocab_size
    assert limit < target.checkpoint.config.vocab_size
    params = SamplingParams(temperature=50.0, max_tokens=200, ignore_eos=True, seq_seed=1)
    done, _ = run(engine_for(target), Request("hot", (1,), params))
    tokens = done["hot", 0].token_ids
    assert len(set(tokens)) > 100, "at this temperature the draw is nearly uniform"
    assert max(tokens) < limit


def test_a_missing_seed_is_drawn_once_and_reported(target):
    params = SamplingParams(temperature=1.0, max_tokens=12, ignore_eos=True)
    done, _ = run(engine_for(target), Request("drawn", (1, 2), params))
    seed = done["drawn", 0].seq_seed
    again, _ = run(
        engine_for(target),
        Request("again", (1, 2), SamplingParams(temperature=1.0, max_tokens=12, ignore_eos=True, seq_seed=seed)),
        Request(
            "other",
            (1, 2),
            SamplingParams(temperature=1.0, max_tokens=12, ignore_eos=True, seq_seed=seed ^ 1),
        ),
    )
    assert again["again", 0].token_ids == done["drawn", 0].token_ids
    assert again["other", 0].token_ids != done["drawn", 0].token_ids


def test_samples_of_one_request_differ_and_keep_their_index(target):
    params = SamplingParams(temperature=1.0, max_tokens=12, ignore_eos=True, seq_seed=9, n=3)
    done, _ = run(engine_for(target), Request("n", (1, 2), params))
    assert list(done) == [("n", 0), ("n", 1), ("n", 2)]
    assert len({d.token_ids for d in done.values()}) == 3


def test_abort_returns_what_there_is_and_frees_the_pages(target):
    engine = engine_for(target, num_blocks=3, page_size=8)
    engine.add(Request("gone", (1, 2, 3), greedy(max_tokens=20)))
    for _ in range(4):
        engine.step()
    assert engine.abort("gone")
    assert not engine.abort("gone")
    (completion,) = engine.take_finished()
    assert completion.finish_reason == "aborted"
    assert len(completion.token_ids) == 4
    assert not engine.busy
    done, _ = run(engine, Request("next", (1, 2, 3), greedy(max_tokens=20)))
    assert done["next", 0].token_ids[:4] == completion.token_ids


def test_the_context_ends_a_reply_with_length(target):
    limit = target.context_length
    done, _ = run(
        engine_for(target, num_blocks=64, page_size=16),
        Request("long", tuple(i % 200 for i in range(limit - 3)), greedy(max_tokens=50)),
    )
    completion = done["long", 0]
    assert completion.finish_reason == "length"
    assert len(completion.token_ids) == 3


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        ((), "empty prompt"),
        ((1,) * 512, "context"),
        ((5, 264), "token id 264"),
        ((-1,), "token id -1"),
        ((1, 1.5), "1.5"),
        ((True,), "True"),
    ],
)
def test_a_bad_prompt_is_refused_by_name(target, tokens, words):
    with pytest.raises(RequestError, match=f"'bad'.*{words}"):
        engine_for(target).add(Request("bad", tokens, greedy()))


def test_a_pool_too_small_for_one_request_is_refused_before_anything_runs(target):
    engine = engine_for(target, num_blocks=2, page_size=4)
    with pytest.raises(CapacityError, match="raise num_blocks"):
        engine.add(Request("big", (1,) * 8, greedy()))
    assert not engine.busy
    engine.add(Request("fits", (1,) * 4, greedy(max_tokens=5)))
    with pytest.raises(RequestError, match="already running"):
        engine.add(Request("fits", (1,), greedy(max_tokens=1)))


def test_a_dtype_other_than_the_loaded_one_is_refused(target):
    with pytest.raises(UsageError, match=r"fp32.*bf16"):
        engine_for(target, dtype="bf16")
    with pytest.raises(UsageError, match=r"fp32.*bf16"):
        target.play([Arrival(0, "a", (1,), greedy())], EngineConfig(dtype="bf16"))


@pytest.mark.parametrize("kernels", ["torch", "invariant"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_recorded_schedule_replays_to_the_same_bits_even_under_library_kernels(tiny_target, kernels, dtype):
    target = tiny_target("qwen3", kernels, dtype)
    arrivals = [
        Arrival(
            step,
            f"r{step}",
            tuple(range(step, step + 11)),
            greedy(prompt_logprobs=0 if step == 1 else None),
            capture_logits=True,
        )
        for step in range(3)
    ]
    config = EngineConfig(dtype=dtype, num_blocks=7, page_size=4, max_step_tokens=9, threads=2)
    played = target.play(arrivals, config)
    assert any(record.preempted for record in played.trace), "the schedule should be a hard one"
    rows: dict[str, list[np.ndarray]] = {}
    for record, logits in zip(played.trace, target.replay(played.trace), strict=True):
        assert len(logits) == len(record.logit_rows)
        drew = [group.request_id for group in record.groups if group.sampled]
        for name, row in zip(drew, logits[len(logits) - len(drew) :], strict=True):
            rows.setdefault(name, []).append(row)
    for (name, _), done in played.completions.items():
        assert np.array_equal(np.stack(rows[name]).view(np.int32), done.logits.view(np.int32))


def test_an_automatic_pool_is_recorded(target):
    played = target.play([Arrival(0, "a", (1, 2), greedy(max_tokens=1))], EngineConfig(max_running=2, page_size=8))
    assert [record.num_blocks for record in played.trace] == [2 * target.context_length // 8]


def test_a_trace_with_a_gap_is_refused(target):
    played = target.play([Arrival(0, "a", (1, 2), greedy())], EngineConfig(num_blocks=8))
    with pytest.raises(UsageError, match="whole trace"):
        target.replay(played.trace[1:])


def test_observation_finds_the_asked_row_and_is_silent_outside(target):
    arrivals = [
        Arrival(0, "a", (1, 2, 3), greedy(max_tokens=2)),
        Arrival(0, "b", (4, 5), greedy(max_tokens=2)),
    ]
    with target.observe(1, "attention", ("b", 1)) as seen:
        target.play(arrivals, EngineConfig(num_blocks=8))
    assert [(o.request_id, o.position, o.layer, o.operator) for o in seen] == [("b", 1, 1, "attention")]
    with target.observe(None, None, None) as everything:
        target.play(arrivals[1:], EngineConfig(num_blocks=8))
    alone = [o for o in everything if (o.layer, o.operator, o.position) == (1, "attention", 1)]
    assert np.array_equal(alone[0].bits, seen[0].bits)
    assert {o.operator for o in everything} >= {"embedding", "linear.qkv", "rope.q", "silu_and_mul"}
    count = len(everything)
    target.play(arrivals, EngineConfig(num_blocks=8))
    assert len(everything) == count


def test_the_head_is_observed_last_and_only_for_rows_that_have_logits(target):
    """Rows of a prompt but its last one have none; what is observed is what the token was drawn from."""
    arrivals = [
        Arrival(0, name, tokens, greedy(max_tokens=2), capture_logits=True)
        for name, tokens in (("a", (1, 2, 3)), ("b", (4, 5)))
    ]
    taken = []
    with target.observe(None, None, None, taken.append) as kept:
        played = target.play(arrivals, EngineConfig(num_blocks=8))
    assert kept == []
    heads = [o for o in taken if o.operator == "linear.head"]
    assert [(o.step, o.request_id, o.position) for o in heads] == [(0, "a", 2), (0, "b", 1), (1, "a", 3), (1, "b", 2)]
    for row in heads:
        logits = played.completions[row.request_id, 0].logits[row.step]
        assert np.array_equal(row.bits, logits.view(np.int32))
    last_of_step = {row.step: row.operator for row in taken}
    assert last_of_step == {0: "linear.head", 1: "linear.head"}


def test_score_is_the_logprob_of_each_token_given_those_before(target):
    tokens = (1, 2, 3, 4, 5)
    scores = target.score(tokens)
    assert scores[0] is None
    played = target.play([Arrival(0, "p", tokens, greedy(prompt_logprobs=0, max_tokens=1))], EngineConfig(num_blocks=8))
    assert scores[1:] == [entry.logprob for entry in played.completions["p", 0].prompt_logprobs[1:]]


def test_an_arrival_can_be_cancelled_by_the_script(target):
    played = target.play(
        [
            Arrival(2, "stays", (1, 2), greedy()),
            Arrival(0, "goes", (3, 4), greedy(max_tokens=30), cancel_step=5),
        ],
        EngineConfig(num_blocks=16),
    )
    assert played.completions["goes", 0].finish_reason == "aborted"
    assert len(played.completions["goes", 0].token_ids) == 5
    assert list(played.completions) == [("stays", 0), ("goes", 0)]


def test_a_request_cancelled_at_its_own_step_never_runs(target):
    played = target.play([Arrival(1, "a", (1, 2), greedy(), cancel_step=1)], EngineConfig(num_blocks=4))
    assert (played.completions["a", 0].finish_reason, played.completions["a", 0].token_ids) == ("aborted", ())
    assert not any(record.groups for record in played.trace)


def test_an_arrival_before_the_first_step_is_refused(target):
    with pytest.raises(UsageError, match=r"'early'.*count from 0"):
        target.play([Arrival(-1, "early", (1, 2), greedy())], EngineConfig(num_blocks=4))


def test_the_description_holds_digests_the_frozen_date_and_what_rendering_changed(tiny_folder):
    from detharness.targets.engine import EngineTarget

    folder = tiny_folder("llama", rope_theta=5000.0)
    (folder / "chat_template.jinja").write_text(
        "{{ strftime_now('%Y') }}{% for m in messages %}{{ m.content }}{% endfor %}"
    )
    target = EngineTarget(str(folder), "invariant", "fp32")
    tokens = target.render_chat([{"role": "user", "content": None}, {"role": "user", "content": "hi"}])
    assert target.detokenize(tokens) == "2024hi"
    described = target.describe()
    assert described["chat_template"] == {"digest": target.checkpoint.chat_template.digest, "date": "2024-07-26"}
    assert len(described["model_digest"]) == 64
    assert any("content" in note for note in described["notes"])


def test_siblings_share_the_checkpoint_and_differ_in_kernels_and_dtype(tiny_target):
    target = tiny_target("llama", "torch", "fp32")
    sibling = target.with_kernels("invariant")
    assert (sibling.kernels, sibling.dtype) == ("invariant", "fp32")
    assert sibling.checkpoint is target.checkpoint
    narrow = sibling.with_kernels("torch", "bf16")
    assert (narrow.kernels, narrow.backend, narrow.dtype) == ("torch", "library", "bf16")
    assert narrow.checkpoint.digest == target.checkpoint.digest
