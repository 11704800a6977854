"""transformers as a generation target: ``generate`` on the CPU, one request at a time, nothing shared between two.

Prompts are rendered, and replies decoded, exactly as for the engine (``transformers_model.py``).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessor, StoppingCriteria

from detharness.checkpoints.detokenize import IncrementalDetokenizer
from detharness.checkpoints.tokenizer import Tokenizer
from detharness.engine.params import MAX_SEED
from detharness.errors import DetharnessError
from detharness.targets.generation import GenerationError, GenerationRequest, Message, Reply
from detharness.targets.transformers_model import TransformersModel


class TransformersGeneration:
    """``model`` in ``dtype``, as ``TransformersModel`` opens it."""

    accepts_images = False

    def __init__(self, model: str, dtype: str) -> None:
        self._model = TransformersModel(model, dtype)
        self._worker = ThreadPoolExecutor(1, "detharness-transformers")
        self._closed = threading.Event()

    @property
    def context_length(self) -> int:
        """Tokens of the model's context, prompt and reply together."""
        return self._model.context_length

    def describe(self) -> dict[str, Any]:
        """The model's description, and that requests are answered one by one."""
        return {**self._model.describe(), "one_by_one": True}

    def count_prompt_tokens(self, messages: Sequence[Message]) -> int:
        """Tokens of the rendered conversation."""
        return len(self._model.render(messages))

    async def generate(self, request: GenerationRequest) -> Reply:
        """One reply, when those asked before have theirs. Cancelling it ends it at its next token."""
        if self._closed.is_set():
            raise _closed()
        ended = threading.Event()
        try:
            return await asyncio.get_running_loop().run_in_executor(self._worker, self._answer, request, ended)
        except asyncio.CancelledError:
            ended.set()
            raise

    async def close(self) -> None:
        """End what runs and waits, and the thread."""
        self._closed.set()
        await asyncio.to_thread(self._worker.shutdown)

    def _answer(self, request: GenerationRequest, ended: threading.Event) -> Reply:
        if ended.is_set() or self._closed.is_set():
            raise _closed()
        try:
            prompt = self._model.render(request.messages)
        except DetharnessError as error:
            raise GenerationError("refused", str(error), retriable=False) from None
        room = self.context_length - len(prompt)
        if room < 1:
            raise GenerationError(
                "refused",
                f"the prompt of {len(prompt)} tokens leaves no room in the context of {self.context_length}",
                retriable=False,
            )
        ids = torch.tensor([prompt])
        logits = _RawLogits()
        reading = _Reading(self._model.tokenizer, self._model.end_tokens, request.stop, logits, (ended, self._closed))
        with torch.random.fork_rng(devices=[]):  # The generator is the process's; it is put back as it was.
            torch.seed() if request.seed is None else torch.manual_seed(request.seed & MAX_SEED)
            self._model.module.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                generation_config=self._config(request, min(room, request.max_tokens)),
                logits_processor=[logits],
                stopping_criteria=[reading],
            )
        return reading.reply(len(prompt))

    def _config(self, request: GenerationRequest, max_tokens: int) -> GenerationConfig:
        sampling: dict[str, Any] = {"do_sample": False}
        if request.temperature > 0.0:
            sampling = {
                "do_sample": True,
                "temperature": request.temperature,
                "top_p": request.top_p,
                "top_k": request.top_k,  # 0 is all; left out, it would be 50.
                "min_p": request.min_p or None,
            }
        ends = list(self._model.end_tokens) or None
        return GenerationConfig(max_new_tokens=max_tokens, eos_token_id=ends, pad_token_id=0, **sampling)


class _RawLogits(LogitsProcessor):  # type: ignore[misc]  # transformers is not followed (pyproject.toml).
    """Keeps the row that the next token is drawn from, as it is before temperature and filters."""

    row: Tensor

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.row = scores[0]
        return scores


class _Reading(StoppingCriteria):  # type: ignore[misc]
    """Reads each token as it is drawn; what ends a reply is what ends it in the engine (``engine/stopping.py``)."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        end_tokens: Sequence[int],
        stop: Sequence[str],
        logits: _RawLogits,
        given_up: Sequence[threading.Event],
    ) -> None:
        self._detokenizer = IncrementalDetokenizer(tokenizer)
        self._end_tokens = end_tokens
        self._stop = stop
        self._logits = logits
        self._given_up = given_up
        self._text = ""
        self._token_ids: list[int] = []
        self._logprobs: list[float] = []

    def __call__(self, input_ids: Tensor, scores: object, **_: object) -> Tensor:
        token = int(input_ids[0, -1])
        self._token_ids.append(token)
        self._logprobs.append(float(self._logits.row.log_softmax(-1)[token]))
        if token not in self._end_tokens:
            self._text += self._detokenizer.push(token)
        return torch.tensor([self._stop_at() is not None or self._is_given_up()])

    def _stop_at(self) -> int | None:
        return min((at for text in self._stop if (at := self._text.find(text)) >= 0), default=None)

    def _is_given_up(self) -> bool:
        return any(event.is_set() for event in self._given_up)

    def reply(self, prompt_tokens: int) -> Reply:
        """What was read; GenerationError if nobody waits for it any more."""
        if self._is_given_up():
            raise _closed()
        self._text += self._detokenizer.flush()
        cut = self._stop_at()
        ended = cut is not None or self._token_ids[-1] in self._end_tokens
        return Reply(
            text=self._text[:cut],
            token_ids=tuple(self._token_ids),
            finish_reason="stop" if ended else "length",
            prompt_tokens=prompt_tokens,
            completion_tokens=len(self._token_ids),
            logprobs=tuple(self._logprobs),
        )


def _closed() -> GenerationError:
    return GenerationError("closed", "the target was closed before the reply was whole", retriable=False)
