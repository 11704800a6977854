"""transformers on its own paths, for probes: ``generate`` alone, ``generate`` over a padded batch, continuous batching.

Every row of logits is read where the model returns it, in all paths alike, and everything that is compared is made of
such rows by the same call on a copy of one row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationConfig

from detharness.errors import RequestError
from detharness.targets.paths import ForwardPass, PathReply, PathRequest, PathRun
from detharness.targets.transformers_continuous import PAGE_SIZE, ContinuousPlay, twin
from detharness.targets.transformers_model import TransformersModel


class TransformersPaths:
    """``model`` in ``dtype``, as ``TransformersModel`` opens it. Not to be used by two threads at once."""

    def __init__(self, model: str, dtype: str) -> None:
        self._model = TransformersModel(model, dtype)
        self._generating = self._model.module
        self._batching = twin(self._model.module)

    @property
    def dtype(self) -> str:
        """fp32 or bf16."""
        return self._model.dtype

    @property
    def backend(self) -> str:
        """The library with its version, and the attention it chose."""
        return f"{self._model.backend}, attention {self._model.attention}"

    @property
    def context_length(self) -> int:
        """Tokens of the model's context, prompt and reply together."""
        return self._model.context_length

    @property
    def vocab_size(self) -> int:
        """Ids below this are real tokens."""
        return min(self._model.tokenizer.vocab_size, int(self._generating.config.get_text_config().vocab_size))

    def with_dtype(self, dtype: str) -> TransformersPaths:
        """The same model in another dtype, opened anew unless it is this one."""
        return self if dtype == self.dtype else TransformersPaths(self._model.name, dtype)

    def describe(self) -> dict[str, Any]:
        """The model's description, the token that pads, and the page size of continuous batching."""
        described = {name: value for name, value in self._model.describe().items() if name != "dtype"}
        return {**described, "pad_token_id": self._pad, "kv_page_size": PAGE_SIZE}

    def tokenize(self, text: str) -> tuple[int, ...]:
        """Token ids of raw text."""
        return self._model.tokenizer.encode(text)

    def render_chat(self, messages: Sequence[dict[str, Any]]) -> tuple[int, ...]:
        """Token ids of a conversation rendered by the model's own chat template."""
        try:
            return self._model.render(messages)
        except RequestError as error:
            raise RequestError(f"{error}, or 'prompt' or 'token_ids' instead of 'messages'") from None

    def generate(self, requests: Sequence[PathRequest], pad_to: int = 0) -> PathRun:
        """``generate`` over all requests at once.

        No row ends early: end tokens are looked for afterwards, since ``generate`` knows one rule for all rows.
        """
        width = max(pad_to, *(len(request.token_ids) for request in requests))
        rows = [[self._pad] * (width - len(request.token_ids)) + list(request.token_ids) for request in requests]
        mask = [[0] * (width - len(request.token_ids)) + [1] * len(request.token_ids) for request in requests]
        most = max(request.max_tokens for request in requests)
        with _watching(self._generating, requests) as seen:
            out = self._generating.generate(
                torch.tensor(rows),
                attention_mask=torch.tensor(mask),
                generation_config=GenerationConfig(do_sample=False, max_new_tokens=most, pad_token_id=self._pad),
            )
        replies = {}
        for request, row in zip(requests, out, strict=True):
            if request.watched:
                tokens = row[width : width + request.max_tokens].tolist()
                replies[request.request_id] = self._reply(request, tokens, seen.rows[request.request_id])
        return PathRun(replies, tuple(seen.forwards))

    def continuous_batching(self, requests: Sequence[PathRequest]) -> PathRun:
        """All requests through a manager of their own, on a model that ``generate`` never uses."""
        play = ContinuousPlay(self._batching, requests, self._model.end_tokens)
        play.run()
        replies = {
            request.request_id: self._reply(request, play.token_ids[request.request_id], play.rows[request.request_id])
            for request in requests
            if request.watched
        }
        return PathRun(replies, tuple(play.forwards))

    @property
    def _pad(self) -> int:
        return self._model.end_tokens[0] if self._model.end_tokens else 0

    def _reply(self, request: PathRequest, tokens: list[int], rows: Sequence[Tensor]) -> PathReply:
        ends = () if request.ignore_eos else self._model.end_tokens
        end = next((index for index, token in enumerate(tokens) if token in ends), None)
        kept = tokens if end is None else tokens[: end + 1]
        logprobs = [row.log_softmax(-1) for row in rows[: len(kept)]]
        best = [row.topk(2).values for row in logprobs]
        return PathReply(
            token_ids=tuple(kept),
            text=self._model.tokenizer.decode(kept if end is None else kept[:-1]),
            logits=torch.stack(list(rows[: len(kept)])).numpy(),
            logprobs=torch.stack([row[token] for row, token in zip(logprobs, kept, strict=True)]).numpy(),
            gaps=torch.stack([two[0] - two[1] for two in best]).numpy(),
            stopped=end is not None,
        )


@dataclass
class _Seen:
    rows: dict[str, list[Tensor]]
    forwards: list[ForwardPass] = field(default_factory=list)


@contextmanager
def _watching(module: Any, requests: Sequence[PathRequest]) -> Iterator[_Seen]:
    """While open, keep the last logits row [V] of each watched request, and what the inputs of each forward show."""
    seen = _Seen({request.request_id: [] for request in requests if request.watched})
    names = tuple(request.request_id for request in requests)

    def look(module: nn.Module, args: object, inputs: dict[str, Any], output: Any) -> None:
        rows, tokens = inputs["input_ids"].shape
        assert rows == len(names)
        mask = inputs.get("attention_mask")  # Left out where it would mask nothing.
        padding = [0] * rows if mask is None else (mask == 0).sum(-1).tolist()
        new = [tokens - pads if tokens > 1 else tokens for pads in padding]  # Padding stands in the prompt alone.
        seen.forwards.append(ForwardPass(names, tuple(new), tuple(padding), torch.get_num_threads()))
        for index, request in enumerate(requests):
            if request.watched and len(seen.rows[request.request_id]) < request.max_tokens:
                seen.rows[request.request_id].append(output.logits[index, -1].float().clone())

    hook = module.register_forward_hook(look, with_kwargs=True)
    try:
        yield seen
    finally:
        hook.remove()
