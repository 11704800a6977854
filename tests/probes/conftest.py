"""A target in miniature: the engine's own scheduler over a toy model, with one fault to switch on per axis.

The toy model's state at a position is a hash of the state before it, read back through the block table, and of the
token; so a cache hit, a moved page or a recomputed row reaches the logits as in a real engine. A fault mixes into
the state something that row purity forbids it to read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from detharness.engine.blocks import BlockPool
from detharness.engine.outputs import TokenLogprob
from detharness.engine.params import FreePages
from detharness.engine.scheduler import Scheduler, Slice
from detharness.engine.sequence import Request
from detharness.engine.sequence import Sequence as Running
from detharness.probes.settings import ProbeSettings, prepare
from detharness.targets.protocol import (
    Arrival,
    Completion,
    EngineConfig,
    PlayResult,
    RowGroup,
    SamplingParams,
    ScriptedTarget,
    StepRecord,
)

VOCAB = 101
THREADS = 2


@dataclass(frozen=True)
class Row:
    """What a faulty kernel could read when it computes one position."""

    slices: Sequence[Slice]
    index: int
    group: RowGroup
    position: int
    hit: int
    config: EngineConfig
    aborted: int
    played_before: bool

    @property
    def mine(self) -> SamplingParams:
        """How this request is sampled."""
        return self.slices[self.index].sequence.request.sampling

    @property
    def others(self) -> list[Slice]:
        """The slices beside this one."""
        return [piece for index, piece in enumerate(self.slices) if index != self.index]

    @property
    def samplers_beside(self) -> list[SamplingParams]:
        """How its neighbours are sampled."""
        return [piece.sequence.request.sampling for piece in self.others]

    @property
    def age_difference(self) -> int:
        """How many tokens more than this request the one beside it has drawn that differs most."""
        ages = [piece.sequence.generated - self.slices[self.index].sequence.generated for piece in self.others]
        return max(ages, key=abs, default=0)

    @property
    def largest_foreign_token(self) -> int:
        """How far the batch's largest token id lies above this request's own: a per-batch scale, in miniature."""
        largest = [max(s.sequence.tokens[s.start : s.start + s.count]) for s in self.slices]
        return max(largest) - largest[self.index]


FAULTS: Mapping[str, tuple[str, Callable[[Row], object]]] = {
    # name: (the axis that must find it, what the kernel reads; something false is harmless)
    "rows counted": ("batch_size", lambda row: len(row.slices) - 1),
    "slot read": ("slot", lambda row: row.index),
    "scale of the batch": ("content", lambda row: row.largest_foreign_token),
    "chunk border read": (
        "chunk",
        lambda row: row.group.kind == "prefill" and row.group.start_position > row.hit and row.group.start_position,
    ),
    "stale cached page": ("prefix_cache", lambda row: row.hit and row.group.start_position == row.hit),
    "page length read": ("page_size", lambda row: row.config.page_size != 16),
    "pages in order assumed": (
        "page_placement",
        lambda row: list(row.group.block_table) != sorted(row.group.block_table),
    ),
    "free slot read": ("page_placement", lambda row: row.config.free_pages is FreePages.NAN),
    "recompute kernel differs": ("preemption", lambda row: row.group.kind == "recompute"),
    "sum per thread": ("threads", lambda row: (row.config.threads or THREADS) != THREADS),
    "cancelled requests counted": ("cancel", lambda row: row.aborted),
    "second run counted": ("run_to_run", lambda row: row.played_before and not row.others),
    "age of a neighbour read": ("arrival", lambda row: row.age_difference),
    "prefill beside decode": (
        "arrival",
        lambda row: row.group.kind == "decode" and any(not piece.sequence.generated for piece in row.others),
    ),
    "another kernel from 24 requests on": ("padding", lambda row: len(row.slices) >= 24),
    "full tile of a neighbour": (
        "padding",
        lambda row: (widest := max(s.count for s in row.slices)) in (64, 128) and widest != row.slices[row.index].count,
    ),
    "sample number read": ("n", lambda row: row.group.sample_index),
    "argmax of mixed batches": (
        "samplers",
        lambda row: row.mine.temperature == 0 and any(other.temperature for other in row.samplers_beside),
    ),
}

SAMPLER_FAULTS: Mapping[str, tuple[str, Callable[[Row], object]]] = {
    # name: (the axis that must find it, what the noise of a draw reads; something false is harmless)
    "key of the first row": ("seeds", lambda row: row.slices[0].sequence.seq_seed ^ (row.mine.seq_seed or 0)),
    "samples counted": ("n", lambda row: row.mine.n - 1),
    "noise of the batch": ("batch_size", lambda row: len(row.slices) - 1),
    "noise of the slot": ("slot", lambda row: row.index),
    "key dropped": ("seeds", lambda row: any(other.seq_seed is None for other in row.samplers_beside)),
    "masks of the batch": (
        "samplers",
        lambda row: any(other.top_k or other.top_p < 1 or other.min_p for other in row.samplers_beside),
    ),
}


def mix(*parts: object) -> int:
    """A 64-bit hash of the parts."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest(), "little")


class _NoDetokenizer:
    """The toy's text is made at the end, so nothing is detokenized on the way."""


@dataclass
class MiniTarget:
    """A ScriptedTarget. ``fault`` bites under the kernel sets in ``faulty``; ``on_play`` is called before each play."""

    kernels: str = "invariant"
    dtype: str = "fp32"
    fault: str | None = None
    faulty: tuple[str, ...] = ("invariant", "torch")
    on_play: Callable[[int], None] | None = None
    backend: str = "toy"
    context_length: int = 1000
    vocab_size: int = VOCAB
    dispatch_borders: tuple[int, ...] = (6, 24)
    plays: list[int] = field(default_factory=list)
    scripts: list[object] = field(default_factory=list)

    def with_kernels(self, kernels: str, dtype: str | None = None) -> MiniTarget:
        return replace(self, kernels=kernels, dtype=dtype or self.dtype)

    @property
    def certificate(self) -> None:
        return None

    def describe(self) -> dict[str, Any]:
        return {"model": "toy", "model_digest": "0" * 64, "context_length": self.context_length}

    def tokenize(self, text: str) -> tuple[int, ...]:
        return tuple(byte % 50 for byte in text.encode())

    def render_chat(self, messages: Sequence[dict[str, Any]]) -> tuple[int, ...]:
        return tuple(token for message in messages for token in self.tokenize(str(message["content"])))

    def detokenize(self, token_ids: Sequence[int]) -> str:
        return " ".join(str(token) for token in token_ids)

    def play(self, arrivals: Sequence[Arrival], config: EngineConfig) -> PlayResult:
        self.plays.append(len(arrivals))
        if self.on_play is not None:
            self.on_play(len(self.plays))
        return _Play(self, arrivals, config).run()

    def step_trace(self) -> Sequence[StepRecord]:
        raise NotImplementedError

    def replay(self, trace: Sequence[StepRecord]) -> Any:
        raise NotImplementedError

    def observe(self, layer: int | None, operator: str | None, row: tuple[str, int] | None) -> Any:
        raise NotImplementedError

    def score(self, token_ids: Sequence[int]) -> list[float | None]:
        raise NotImplementedError


class _Play:
    def __init__(self, target: MiniTarget, arrivals: Sequence[Arrival], config: EngineConfig) -> None:
        self.target, self.arrivals, self.config = target, arrivals, config
        assert config.num_blocks is not None
        pool = BlockPool(
            config.num_blocks, config.page_size, config.page_placement, config.placement_seed, self._released
        )
        self.scheduler = Scheduler(config, pool, target.context_length)
        self.memory: dict[tuple[int, int], int] = {}  # (page, offset) -> state
        self.hits: dict[str, int] = {}
        self.rows: dict[tuple[str, int], list[np.ndarray]] = {}
        self.aborted = 0
        script = (target.kernels, tuple(arrivals), config)
        self.again = script in target.scripts
        target.scripts.append(script)
        self.result = PlayResult()

    def _released(self, page: int) -> None:
        for slot in [slot for slot in self.memory if slot[0] == page]:
            del self.memory[slot]

    def run(self) -> PlayResult:
        step, last = 0, max(arrival.step for arrival in self.arrivals)
        sequences: dict[str, list[Running]] = {}
        while step <= last or self.scheduler.waiting or self.scheduler.running:
            for arrival in self.arrivals:
                if arrival.cancel_step == step:
                    live = [sample for sample in sequences[arrival.request_id] if sample.finish_reason is None]
                    self.aborted += len(live)
                    for sample in live:
                        self._finish(sample, "aborted", step)
            for order, arrival in enumerate(self.arrivals):
                if arrival.step == step:
                    request = Request(arrival.request_id, arrival.token_ids, arrival.sampling, arrival.capture_logits)
                    sequences[arrival.request_id] = [
                        Running(
                            request=request,
                            sample_index=index,
                            seq_seed=arrival.sampling.seq_seed or 0,
                            order=order,
                            detokenizer=_NoDetokenizer(),  # type: ignore[arg-type]
                            tokens=list(arrival.token_ids),
                        )
                        for index in range(arrival.sampling.n)
                    ]
                    for sequence in sequences[arrival.request_id]:
                        self.rows[sequence.name] = []
                        self.scheduler.add(sequence)
            self._step(step)
            step += 1
        done = self.result.completions
        names = [(arrival.request_id, index) for arrival in self.arrivals for index in range(arrival.sampling.n)]
        self.result.completions = {name: done[name] for name in names}
        return self.result

    def _step(self, step: int) -> None:
        plan = self.scheduler.schedule(step)
        self.hits |= {request_id: tokens for request_id, _, tokens in plan.cache_hits}
        groups = [self._group(piece) for piece in plan.slices]
        for index, (piece, group) in enumerate(zip(plan.slices, groups, strict=True)):
            for offset, token in enumerate(group.token_ids):
                position = piece.start + offset
                hit = self.hits.get(group.request_id, 0)
                row = Row(plan.slices, index, group, position, hit, self.config, self.aborted, self.again)
                self._write(piece, position, token, row)
        for piece in plan.slices:
            self.scheduler.computed(piece)
        for index, (piece, group) in enumerate(zip(plan.slices, groups, strict=True)):
            if piece.samples:
                position = len(piece.sequence.tokens)
                self._sample(
                    piece, step, Row(plan.slices, index, group, position, 0, self.config, self.aborted, self.again)
                )
        self.result.trace.append(
            StepRecord(
                step=step,
                groups=tuple(groups),
                preempted=tuple(plan.preempted),
                cache_hits=tuple(plan.cache_hits),
                kernels=self.target.kernels,
                backend=self.target.backend,
                plan_ids=(),
                threads=self.config.threads or THREADS,
                page_size=self.config.page_size,
                num_blocks=self.config.num_blocks,
                logit_rows=(),
            )
        )

    def _group(self, piece: Slice) -> RowGroup:
        sequence = piece.sequence
        kind = "recompute" if piece.start < sequence.high_water else "decode"
        if kind == "decode" and piece.start < sequence.prompt_length:
            kind = "prefill"
        return RowGroup(
            request_id=sequence.request.request_id,
            sample_index=sequence.sample_index,
            kind=kind,  # type: ignore[arg-type]
            start_position=piece.start,
            token_ids=tuple(sequence.tokens[piece.start : piece.start + piece.count]),
            block_table=tuple(sequence.block_table),
            sampled=(),
        )

    def _slot(self, piece: Slice, position: int) -> tuple[int, int]:
        page, offset = divmod(position, self.config.page_size)
        return piece.sequence.block_table[page], offset

    def _write(self, piece: Slice, position: int, token: int, row: Row) -> None:
        before = self.memory[self._slot(piece, position - 1)] if position else 0
        state = mix(before, token)
        if read := self._read(FAULTS, row):
            state = mix(state, read)
        self.memory[self._slot(piece, position)] = state

    def _read(self, faults: Mapping[str, tuple[str, Callable[[Row], object]]], row: Row) -> int:
        if self.target.fault not in faults or self.target.kernels not in self.target.faulty:
            return 0
        return int(faults[self.target.fault][1](row) or 0)  # type: ignore[call-overload,no-any-return]

    def _sample(self, piece: Slice, step: int, row: Row) -> None:
        sequence = piece.sequence
        position = len(sequence.tokens)
        state = self.memory[self._slot(piece, position - 1)]
        logits = np.random.default_rng(state).standard_normal(VOCAB, dtype=np.float32)
        params = sequence.request.sampling
        scores = logits.astype(np.float64)
        forced = params.top_k == 1 or params.top_p < 1e-6 or params.min_p == 1  # Masks that keep the best token.
        if params.temperature and not forced:
            key = mix(sequence.seq_seed, sequence.sample_index, position, self._read(SAMPLER_FAULTS, row))
            scores = scores / params.temperature + np.random.default_rng(key).gumbel(size=VOCAB)
        token = int(scores.argmax())
        raw = (logits - np.logaddexp.reduce(logits)).astype(np.float32)
        best = [int(choice) for choice in np.argsort(-raw, kind="stable")[:2]]
        sequence.logprobs.append(
            TokenLogprob(token, float(raw[token]), None, tuple((choice, float(raw[choice])) for choice in best))
        )
        self.rows[sequence.name].append(logits)
        sequence.tokens.append(token)
        if sequence.generated == sequence.request.sampling.max_tokens:
            self._finish(sequence, "length", step)

    def _finish(self, sequence: Running, reason: str, step: int) -> None:
        sequence.finish_reason = reason  # type: ignore[assignment]
        self.scheduler.remove(sequence, step)
        name = sequence.name
        tokens = tuple(sequence.tokens[sequence.prompt_length :])
        self.result.completions[name] = Completion(
            request_id=name[0],
            sample_index=name[1],
            prompt_token_ids=sequence.request.token_ids,
            token_ids=tokens,
            text=self.target.detokenize(tokens),
            finish_reason=reason,  # type: ignore[arg-type]
            stop_reason=None,
            seq_seed=sequence.seq_seed,
            logprobs=tuple(sequence.logprobs) if sequence.request.sampling.logprobs is not None else None,
            prompt_logprobs=None,
            logits=np.stack(self.rows[name]) if sequence.request.capture_logits and self.rows[name] else None,
            cached_tokens=sequence.cached_tokens or 0,
            preemptions=sequence.preemptions,
        )


PROMPTS = (
    '{"id": "short", "prompt": "tell me a story about a very small harbour"}\n'
    '{"id": "long", "prompt": "' + "one more line of the long prompt, " * 3 + '"}\n'
)


@pytest.fixture
def mini_target() -> type[MiniTarget]:
    return MiniTarget


@pytest.fixture
def faults() -> Mapping[str, tuple[str, Callable[[Row], object]]]:
    return {**FAULTS, **SAMPLER_FAULTS}


@pytest.fixture
def two_cores(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1})


@pytest.fixture
def make_plan(tmp_path, two_cores):
    """Prepare a probe of two prompts against a target; options as in ProbeSettings."""

    def prepared(target: ScriptedTarget, **options: Any):
        prompts = tmp_path / "prompts.jsonl"
        prompts.write_text(PROMPTS)
        defaults = {"prompts": prompts, "max_tokens": 36, "dtype": "fp32", "out": tmp_path / "out"}
        settings = ProbeSettings(target="engine:toy", **{**defaults, **options})
        return prepare(settings, lambda text, kernels, dtype: target.with_kernels(kernels, dtype))

    return prepared
