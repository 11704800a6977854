"""The engine as a generation target: conversations from many callers share its steps."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from detharness.engine.loop import Engine
from detharness.engine.outputs import Completion, StepRecord
from detharness.engine.params import MAX_SEED, EngineConfig, SamplingParams
from detharness.engine.sequence import Request
from detharness.errors import DetharnessError
from detharness.targets.engine import EngineTarget
from detharness.targets.generation import GenerationError, GenerationRequest, Message, Reply


@dataclass
class _Pending:
    """One request on its way: what its caller waits for, and the rows of the steps that it took part in."""

    reply: Future[Reply]
    rows: list[int] = field(default_factory=list)
    first_step: int | None = None
    last_step: int | None = None

    def saw(self, record: StepRecord) -> None:
        self.first_step = record.step if self.first_step is None else self.first_step
        self.last_step = record.step
        self.rows.append(record.rows)

    def batch(self) -> dict[str, Any] | None:
        if not self.rows:
            return None
        mean = sum(self.rows) / len(self.rows)
        return {
            "min": min(self.rows),
            "max": max(self.rows),
            "mean": mean,
            "first_step": self.first_step,
            "last_step": self.last_step,
        }


class EngineGeneration:
    """Answers over one ``Engine``. One thread steps it; requests join between steps, so callers share rows.

    ``max_running`` bounds the requests that run at once; more wait in the engine's queue.
    """

    accepts_images = False

    def __init__(self, target: EngineTarget, *, max_running: int = 32) -> None:
        self._target = target
        config = EngineConfig(dtype=target.dtype, max_running=max_running)
        self._engine = Engine(target.decoder, target.checkpoint.tokenizer, target.checkpoint.eos_token_ids, config)
        self._changed = threading.Condition()
        self._arriving: list[tuple[Request, _Pending]] = []
        self._leaving: list[str] = []
        self._pending: dict[str, _Pending] = {}
        self._number = 0
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="detharness-engine", daemon=True)
        self._thread.start()

    @property
    def context_length(self) -> int:
        """Tokens of the model's context, or of the whole block pool where that is smaller."""
        return min(self._target.context_length, self._engine.num_blocks * self._engine.config.page_size)

    def describe(self) -> dict[str, Any]:
        """The model's digests, the kernels and their certificate, the engine's configuration."""
        target = self._target
        return {
            "form": "engine",
            **target.describe(),
            "kernels": target.kernels,
            "backend": target.backend,
            "dtype": target.dtype,
        }

    def count_prompt_tokens(self, messages: Sequence[Message]) -> int:
        """Tokens of the rendered conversation."""
        return len(self._target.render_chat(list(messages)))

    async def generate(self, request: GenerationRequest) -> Reply:
        """One reply. Cancelling it takes the request out of the engine."""
        try:
            tokens = self._target.render_chat(list(request.messages))
            sampling = SamplingParams(
                temperature=request.temperature,
                top_p=request.top_p,
                top_k=request.top_k,
                min_p=request.min_p,
                max_tokens=request.max_tokens,
                stop=request.stop,
                seq_seed=None if request.seed is None else request.seed & MAX_SEED,
                logprobs=0,
            )
        except DetharnessError as error:
            raise GenerationError("refused", str(error), retriable=False) from None
        pending = _Pending(Future())
        with self._changed:
            if self._closed:
                raise GenerationError("closed", "the engine is closed", retriable=False)
            name = str(self._number)
            self._number += 1
            self._arriving.append((Request(name, tokens, sampling), pending))
            self._changed.notify()
        try:
            return await asyncio.wrap_future(pending.reply)
        except asyncio.CancelledError:
            with self._changed:
                self._leaving.append(name)
                self._changed.notify()
            raise

    async def close(self) -> None:
        """Stop stepping; what still runs gets no reply."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        await asyncio.to_thread(self._thread.join)

    def _work(self) -> None:
        try:
            while self._admit():
                if self._engine.busy:
                    self._take(self._engine.step())
        except Exception as error:  # A fault of ours: whoever waits must hear of it, or would wait for ever.
            self._fail(error)
        else:
            self._fail(GenerationError("closed", "the engine was closed before the reply was whole", retriable=False))

    def _admit(self) -> bool:
        """Take in what came and went since the last step; waits while there is nothing to do. False when closed."""
        with self._changed:
            while not (self._closed or self._arriving or self._leaving or self._engine.busy):
                self._changed.wait()
            arriving, self._arriving = self._arriving, []
            leaving, self._leaving = self._leaving, []
            closed = self._closed
        for request, pending in arriving:
            self._pending[request.request_id] = pending
            try:
                self._engine.add(request)
            except DetharnessError as error:
                del self._pending[request.request_id]
                _settle(pending, GenerationError("refused", str(error), retriable=False))
        for name in leaving:
            self._engine.abort(name)
        self._answer()  # Aborted ones leave the table too.
        return not closed

    def _take(self, record: StepRecord) -> None:
        for group in record.groups:
            if group.request_id in self._pending:
                self._pending[group.request_id].saw(record)
        self._answer()

    def _answer(self) -> None:
        for done in self._engine.take_finished():
            pending = self._pending.pop(done.request_id)
            _settle(pending, _reply(done, pending))

    def _fail(self, error: Exception) -> None:
        with self._changed:
            self._closed = True
            waiting = [*self._pending.values(), *(pending for _, pending in self._arriving)]
        for pending in waiting:
            _settle(pending, error)


def _settle(pending: _Pending, outcome: Reply | Exception) -> None:
    """Hand the outcome to whoever waits; one who was cancelled waits no more."""
    if not pending.reply.set_running_or_notify_cancel():
        return
    if isinstance(outcome, Reply):
        pending.reply.set_result(outcome)
    else:
        pending.reply.set_exception(outcome)


def _reply(done: Completion, pending: _Pending) -> Reply:
    assert done.logprobs is not None
    return Reply(
        text=done.text,
        token_ids=done.token_ids,
        finish_reason=done.finish_reason,
        prompt_tokens=len(done.prompt_token_ids),
        completion_tokens=len(done.token_ids),
        logprobs=tuple(entry.logprob for entry in done.logprobs),
        batch=pending.batch(),
    )
