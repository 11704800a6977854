"""A library in miniature: three paths over one toy model, with one fault to switch on per axis.

The toy's logits are noise, keyed by the tokens before them. A fault adds to the key what a path must not read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from detharness.probes.paths.settings import PathPlan, PathSettings, prepare
from detharness.targets.paths import ForwardPass, PathError, PathReply, PathRequest, PathRun

VOCAB = 101
END = 100


@dataclass(frozen=True)
class Row:
    """What a faulty path could read when it computes one row."""

    path: str
    requests: int
    padding: int
    width: int
    calls: int
    prompts: int

    @property
    def managed(self) -> bool:
        return self.path == "continuous_batching"


FAULTS: Mapping[str, tuple[str, str, Callable[[Row], object]]] = {
    # name: (the axis and the level that must find it, what the path reads; something false is harmless)
    "padding read": ("padded_batch", "pads=1", lambda row: row.padding),
    "wide padding read": ("padded_batch", "pads=32", lambda row: row.padding > 20),
    "rows counted": ("padded_batch", "copies=2", lambda row: not row.managed and row.requests > 1),
    "five rows": ("padded_batch", "copies=5", lambda row: not row.managed and row.requests > 4),
    "another kernel": ("continuous_batching", "alone", lambda row: row.managed),
    "company counted": ("continuous_batching", "batch=4", lambda row: row.managed and row.requests > 1),
    "prompts beside": ("continuous_batching", "arrivals", lambda row: row.managed and row.requests > 1 and row.prompts),
    "state kept": ("run_to_run", "at_the_end", lambda row: row.calls > 12 and row.path == "generate"),
    "noise": ("run_to_run", "at_once", lambda row: row.calls),
}


def mix(*parts: object) -> int:
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest(), "little")


@dataclass
class MiniPaths:
    """A PathTarget. ``broken``: what continuous batching says instead of running, from its ``broken_from``-th call."""

    dtype: str = "fp32"
    fault: str | None = None
    broken: str | None = None
    broken_from: int = 1
    on_play: Callable[[int], None] | None = None
    forming: bool = True  # Whether batches really form.
    backend: str = "toy 1"
    context_length: int = 1000
    vocab_size: int = VOCAB
    calls: list[str] = field(default_factory=list)

    def with_dtype(self, dtype: str) -> MiniPaths:
        return replace(self, dtype=dtype, calls=[])

    def describe(self) -> dict[str, Any]:
        return {"model": "toy", "model_digest": "0" * 64, "context_length": self.context_length}

    def tokenize(self, text: str) -> tuple[int, ...]:
        return tuple(byte % 50 for byte in text.encode())

    def render_chat(self, messages: Sequence[dict[str, Any]]) -> tuple[int, ...]:
        return tuple(token for message in messages for token in self.tokenize(str(message["content"])))

    def generate(self, requests: Sequence[PathRequest], pad_to: int = 0) -> PathRun:
        self._called("generate")
        width = max(pad_to, *(len(request.token_ids) for request in requests))
        names = tuple(request.request_id for request in requests)
        pads = tuple(width - len(request.token_ids) for request in requests)
        steps = max(request.max_tokens for request in requests)
        forwards = [ForwardPass(names, (1,) * len(names), pads, 1) for _ in range(steps)]
        if not self.forming:
            forwards = [ForwardPass((name,), (1,), (0,), 1) for name in names for _ in range(steps)]
        return self._run("generate", requests, forwards)

    def continuous_batching(self, requests: Sequence[PathRequest]) -> PathRun:
        self._called("continuous_batching")
        if self.broken is not None and self.calls.count("continuous_batching") >= self.broken_from:
            raise PathError(self.broken)
        forwards = []
        left = {request.request_id: request.max_tokens for request in requests}
        while any(left.values()):
            present = [r for r in requests if r.arrives <= len(forwards) and left[r.request_id]]
            if not self.forming:
                present = present[:1]
            tokens = [len(r.token_ids) if left[r.request_id] == r.max_tokens else 1 for r in present]
            names = tuple(request.request_id for request in present)
            forwards.append(ForwardPass(names, tuple(tokens), (0,) * len(names), 1))
            left |= {name: left[name] - 1 for name in names}
        return self._run("continuous_batching", requests, forwards)

    def _called(self, path: str) -> None:
        self.calls.append(path)
        if self.on_play is not None:
            self.on_play(len(self.calls))

    def _run(self, path: str, requests: Sequence[PathRequest], forwards: Sequence[ForwardPass]) -> PathRun:
        replies = {r.request_id: self._reply(path, r, forwards) for r in requests if r.watched}
        return PathRun(replies, tuple(forwards))

    def _reply(self, path: str, request: PathRequest, forwards: Sequence[ForwardPass]) -> PathReply:
        tokens: list[int] = []
        rows = []
        mine = [forward for forward in forwards if request.request_id in forward.requests]
        for forward in mine[: request.max_tokens]:
            at = forward.requests.index(request.request_id)
            others = [count > 1 for index, count in enumerate(forward.tokens) if index != at]
            row = Row(path, len(forward.requests), forward.padding[at], 0, len(self.calls), sum(others))
            read = FAULTS[self.fault][2](row) if self.fault is not None else None
            key = (request.token_ids, tuple(tokens), *((int(read),) if read else ()))  # type: ignore[call-overload]
            rows.append(np.random.default_rng(mix(key)).standard_normal(VOCAB, dtype=np.float32))
            tokens.append(int(rows[-1].argmax()))
            if tokens[-1] == END and not request.ignore_eos:
                break
        logits = np.stack(rows)
        logprobs = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
        best = np.sort(logprobs, axis=1)
        return PathReply(
            token_ids=tuple(tokens),
            text=" ".join(str(token) for token in tokens),
            logits=logits,
            logprobs=logprobs[np.arange(len(tokens)), tokens].astype(np.float32),
            gaps=(best[:, -1] - best[:, -2]).astype(np.float32),
            stopped=tokens[-1] == END and not request.ignore_eos,
        )


PROMPTS = (
    '{"id": "short", "prompt": "tell me a story"}\n'
    '{"id": "long", "prompt": "' + "one more line of it, " * 3 + '"}\n'
    '{"id": "middle", "prompt": "tell me a story about a harbour"}\n'
)


@pytest.fixture
def mini_paths() -> type[MiniPaths]:
    return MiniPaths


@pytest.fixture
def path_faults() -> Mapping[str, tuple[str, str, Callable[[Row], object]]]:
    return FAULTS


@pytest.fixture
def make_path_plan(tmp_path) -> Callable[..., PathPlan]:
    """Prepare a probe of three prompts against a toy; options as in PathSettings."""

    def prepared(target: MiniPaths, **options: Any) -> PathPlan:
        prompts = tmp_path / "prompts.jsonl"
        prompts.write_text(PROMPTS)
        defaults = {"prompts": prompts, "max_tokens": 12, "dtype": "fp32", "out": tmp_path / "out"}
        settings = PathSettings(target="hf:toy", **{**defaults, **options})
        return prepare(settings, lambda text, dtype: target.with_dtype(dtype))

    return prepared
