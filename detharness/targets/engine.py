"""The reference engine as a target: scripted traffic, kernel sets side by side, observation and replay."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Many
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from detharness.checkpoints.chat_template import DEFAULT_DATE
from detharness.checkpoints.checkpoint import Checkpoint, load_checkpoint
from detharness.engine.decoder import Decoder
from detharness.engine.loop import Engine
from detharness.engine.replay import replay
from detharness.engine.sequence import Request
from detharness.errors import RequestError, UsageError
from detharness.kernels.certify import require_certificate
from detharness.kernels.contract import Backend, KernelSet, kernel_set, precision
from detharness.targets.protocol import (
    Arrival,
    EngineConfig,
    Observation,
    PlayResult,
    SamplingParams,
    StepRecord,
)


class EngineTarget:
    """A checkpoint under one kernel set and dtype. Siblings made by ``with_kernels`` share loaded weights.

    ``kernels`` is a name, or a kernel set of somebody else's or a mutant, which claims nothing and has no certificate.
    """

    def __init__(
        self,
        model: str,
        kernels: str | KernelSet,
        dtype: str,
        *,
        kernel_backend: Backend = "auto",
        checkpoints: dict[str, Checkpoint] | None = None,
        strict: bool = False,
    ) -> None:
        self.model = model
        self.dtype = dtype
        self._kernel_backend = kernel_backend
        self._checkpoints = {} if checkpoints is None else checkpoints
        self._strict = strict
        # Strict: no second choice where C++ cannot be built, and no kernels that fail their certificate.
        named = "cpp" if strict and kernel_backend == "auto" else kernel_backend
        self._given = kernels if isinstance(kernels, KernelSet) else None
        self._kernel_set = kernel_set(kernels, named) if isinstance(kernels, str) else kernels
        self._precision = precision(dtype)
        held = str(self._precision.activations)
        if held not in self._checkpoints:
            self._checkpoints[held] = load_checkpoint(model, dtype=self._precision.activations)
        self.checkpoint = self._checkpoints[held]
        self._decoder: Decoder | None = None
        self._trace: list[StepRecord] = []
        self._rendering_notes: list[str] = []
        self._observing: list[_Collector] = []

    @property
    def kernels(self) -> str:
        """The kernel set's name."""
        return self._kernel_set.name

    @property
    def backend(self) -> str:
        """How the kernel set is built."""
        return self._kernel_set.backend

    @cached_property
    def certificate(self) -> dict[str, Any] | None:
        """Id and status of what the bit probes of this host found, probed now if never before."""
        if self._given is not None or self._kernel_set.name == "torch":  # Neither claims row purity.
            return None
        found = require_certificate(self._kernel_set, strict=self._strict)
        return {"id": found.id, "status": found.status}

    @property
    def decoder(self) -> Decoder:
        """The packed model, built on first use, on kernels whose certificate was looked at."""
        if self._decoder is None:
            _ = self.certificate
            weights = self.checkpoint.weights
            self._decoder = Decoder(
                self.checkpoint.config, weights, self._kernel_set, weight_dtype=self._precision.weights
            )
            weights.release()
        return self._decoder

    @property
    def context_length(self) -> int:
        """Tokens the model's context holds, prompt and reply together."""
        return self.checkpoint.config.max_positions

    @property
    def vocab_size(self) -> int:
        """Ids below this are real tokens; rows of the embedding above it are padding and never drawn."""
        return min(self.checkpoint.tokenizer.vocab_size, self.checkpoint.config.vocab_size)

    @property
    def dispatch_borders(self) -> tuple[int, ...]:
        """Row counts at which the products of this model's widths change their way of working."""
        config = self.checkpoint.config
        lengths = (config.hidden_size, config.intermediate_size)
        return tuple(sorted({rows for length in lengths for rows in self._kernel_set.dispatch_borders(length)}))

    def with_kernels(self, kernels: str | KernelSet, dtype: str | None = None) -> EngineTarget:
        """The same checkpoint under another kernel set (and dtype); a given set goes by its name from then on."""
        return EngineTarget(
            self.model,
            self._given if self._given is not None and kernels == self._given.name else kernels,
            dtype or self.dtype,
            kernel_backend=self._kernel_backend,
            checkpoints=self._checkpoints,
            strict=self._strict,
        )

    def describe(self) -> dict[str, Any]:
        """What belongs in a manifest: digests, family, end tokens, the chat template with the date it was told, and
        everything noted while loading and rendering.
        """
        checkpoint = self.checkpoint
        template = checkpoint.chat_template
        return {
            "model": self.model,
            "kind": checkpoint.kind,
            "family": checkpoint.config.family,
            "model_digest": checkpoint.digest,
            "tokenizer_digest": checkpoint.tokenizer.digest,
            "eos_token_ids": list(checkpoint.eos_token_ids),
            "context_length": self.context_length,
            "chat_template": template and {"digest": template.digest, "date": DEFAULT_DATE.isoformat()},
            "notes": [*checkpoint.notes, *self._rendering_notes],
        }

    def tokenize(self, text: str) -> tuple[int, ...]:
        """Token ids of raw text."""
        return self.checkpoint.tokenizer.encode(text)

    def render_chat(self, messages: Many[dict[str, Any]]) -> tuple[int, ...]:
        """Token ids of a conversation rendered by the checkpoint's own chat template."""
        template = self.checkpoint.chat_template
        if template is None:
            raise RequestError(f"{self.model} has no chat template: give 'prompt' or 'token_ids' instead of 'messages'")
        rendered = template.render(messages, self.checkpoint.tokenizer)
        self._rendering_notes += [note for note in rendered.notes if note not in self._rendering_notes]
        return rendered.token_ids

    def detokenize(self, token_ids: Many[int]) -> str:
        """Text of token ids."""
        return self.checkpoint.tokenizer.decode(token_ids)

    def play(self, arrivals: Many[Arrival], config: EngineConfig) -> PlayResult:
        """Run a traffic script to its end on a fresh engine; arrivals of one step keep their order."""
        if config.dtype != self.dtype:
            raise UsageError(f"this target is loaded in {self.dtype}, the script asks for {config.dtype}")
        engine = Engine(self.decoder, self.checkpoint.tokenizer, self.checkpoint.eos_token_ids, config)
        due: dict[int, list[Arrival]] = {}
        cancels: dict[int, list[str]] = {}
        for arrival in arrivals:
            if arrival.step < 0:
                raise UsageError(f"arrival {arrival.request_id!r} has step {arrival.step}: steps count from 0")
            due.setdefault(arrival.step, []).append(arrival)
            if arrival.cancel_step is not None:
                cancels.setdefault(arrival.cancel_step, []).append(arrival.request_id)
        if len({arrival.request_id for arrival in arrivals}) != len(arrivals):
            raise UsageError("a traffic script names one request id twice: give each arrival its own")
        result = PlayResult()
        last_arrival = max(due, default=-1)
        while engine.busy or engine.step_number <= last_arrival:
            for arrival in due.get(engine.step_number, ()):
                engine.add(Request(arrival.request_id, arrival.token_ids, arrival.sampling, arrival.capture_logits))
            for request_id in cancels.get(engine.step_number, ()):
                engine.abort(request_id)
            result.trace.append(engine.step(self._observe_step if self._observing else None))
            for done in engine.take_finished():
                result.completions[done.request_id, done.sample_index] = done
        order = {arrival.request_id: index for index, arrival in enumerate(arrivals)}
        result.completions = dict(sorted(result.completions.items(), key=lambda item: (order[item[0][0]], item[0][1])))
        self._trace = result.trace
        return result

    def step_trace(self) -> Many[StepRecord]:
        """The schedule trace of the last play."""
        return self._trace

    def replay(self, trace: Many[StepRecord]) -> list[NDArray[np.float32]]:
        """Feed a recorded schedule to the model: logits [len(logit_rows), V] of the recorded rows, per step."""
        return [logits.numpy() for logits in replay(self.decoder, trace)]

    @contextmanager
    def observe(
        self,
        layer: int | None,
        operator: str | None,
        row: tuple[str, int] | None,
        into: Callable[[Observation], None] | None = None,
    ) -> Iterator[list[Observation]]:
        """While open, collect operator output rows of every play; see the protocol."""
        collector = _Collector(layer, operator, row, into)
        self._observing.append(collector)
        try:
            yield collector.seen
        finally:
            self._observing.remove(collector)

    def _observe_step(
        self, step: int, names: Many[tuple[str, int, int]], layer: int, operator: str, rows: Tensor
    ) -> None:
        for collector in self._observing:
            collector.offer(step, names, layer, operator, rows)

    def score(self, token_ids: Many[int]) -> list[float | None]:
        """Raw fp32 logprob of each token given those before it, in one prefill."""
        params = SamplingParams(max_tokens=1, prompt_logprobs=0, ignore_eos=True)
        config = EngineConfig(dtype=self.dtype, max_step_tokens=max(1, len(token_ids)), max_running=1)
        config = replace(config, num_blocks=-(-(len(token_ids) + 1) // config.page_size))
        result = self.play([Arrival(0, "score", tuple(token_ids), params)], config)
        entries = result.completions["score", 0].prompt_logprobs
        assert entries is not None
        return [None if entry is None else entry.logprob for entry in entries]


class _Collector:
    """Takes the observations that match one ``observe`` call: into ``seen``, or to whoever wants them."""

    def __init__(
        self,
        layer: int | None,
        operator: str | None,
        row: tuple[str, int] | None,
        into: Callable[[Observation], None] | None,
    ) -> None:
        self._layer, self._operator, self._row = layer, operator, row
        self.seen: list[Observation] = []
        self._take = self.seen.append if into is None else into

    def offer(self, step: int, names: Many[tuple[str, int, int]], layer: int, operator: str, rows: Tensor) -> None:
        if self._layer not in (None, layer) or self._operator not in (None, operator):
            return
        bits = rows.detach().contiguous().view(_BITS[rows.dtype]).numpy()
        for index, (request_id, sample_index, position) in enumerate(names):
            if self._row in (None, (request_id, position)):
                self._take(Observation(step, request_id, sample_index, position, layer, operator, bits[index].copy()))


_BITS: Mapping[torch.dtype, torch.dtype] = {torch.float32: torch.int32, torch.bfloat16: torch.int16}
