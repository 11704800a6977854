"""transformers as a generation target: ``generate`` on the CPU, one request at a time, nothing shared between two.

Prompts are rendered, and replies decoded, exactly as for the engine, so that only the computing differs. It is left as
the library does it: where a vocabulary has padded rows, they may be drawn.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr
from io import StringIO
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import AutoModelForCausalLM, GenerationConfig, LogitsProcessor, StoppingCriteria

from detharness.checkpoints.chat_template import DEFAULT_DATE, ChatTemplate, load_template_folder, load_template_gguf
from detharness.checkpoints.checkpoint import model_digest
from detharness.checkpoints.detokenize import IncrementalDetokenizer
from detharness.checkpoints.end_tokens import parse_end_tokens
from detharness.checkpoints.gguf_file import GgufFile
from detharness.checkpoints.gguf_tokenizer import load_tokenizer_gguf
from detharness.checkpoints.locate import ModelLocation, locate_model
from detharness.checkpoints.tokenizer import Tokenizer, load_tokenizer_folder
from detharness.engine.params import MAX_SEED
from detharness.errors import CheckpointError, DetharnessError, RequestError, UsageError
from detharness.rendering.escape import one_line
from detharness.targets.generation import GenerationError, GenerationRequest, Message, Reply

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class TransformersGeneration:
    """``model`` (a folder, a ``.gguf`` file, an id in the local cache, or ``smollm2-135m``) in ``dtype`` fp32 or bf16.

    Nothing is fetched, and no code that a model brings is run. UsageError or CheckpointError where it cannot be opened.
    """

    accepts_images = False

    def __init__(self, model: str, dtype: str) -> None:
        if dtype not in _DTYPES:
            raise UsageError(f"transformers runs in {' or '.join(_DTYPES)} here, not in {dtype}")
        location = locate_model(model)
        self._name = model
        self._dtype = dtype
        self._location = location
        self._digest = model_digest(location)
        self._tokenizer, self._template = _prompting(location)
        self._model = _load(location, _DTYPES[dtype])
        stated = parse_end_tokens(self._model.generation_config.eos_token_id, "the generation config")
        self._end_tokens = tuple(dict.fromkeys((*stated, *self._tokenizer.eos_token_ids)))
        # A request says everything; no penalty or filter slips in from a file.
        self._model.generation_config = GenerationConfig()
        self._worker = ThreadPoolExecutor(1, "detharness-transformers")
        self._closed = threading.Event()

    @property
    def context_length(self) -> int:
        """Tokens of the model's context, prompt and reply together."""
        return int(self._model.config.get_text_config().max_position_embeddings)

    def describe(self) -> dict[str, Any]:
        """Digests, the precision, the version of transformers, and that requests are answered one by one."""
        template = self._template
        return {
            "form": "transformers",
            "model": self._name,
            "kind": self._location.kind,
            "model_digest": self._digest,
            "tokenizer_digest": self._tokenizer.digest,
            "eos_token_ids": list(self._end_tokens),
            "context_length": self.context_length,
            "chat_template": template and {"digest": template.digest, "date": DEFAULT_DATE.isoformat()},
            "backend": f"transformers {transformers.__version__}",
            "attention": self._model.config._attn_implementation,
            "dtype": self._dtype,
            "one_by_one": True,
        }

    def count_prompt_tokens(self, messages: Sequence[Message]) -> int:
        """Tokens of the rendered conversation."""
        return len(self._render(messages))

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

    def _render(self, messages: Sequence[Message]) -> tuple[int, ...]:
        if self._template is None:
            raise RequestError(f"{self._name} has no chat template: give a model that has one")
        return self._template.render(messages, self._tokenizer).token_ids

    def _answer(self, request: GenerationRequest, ended: threading.Event) -> Reply:
        if ended.is_set() or self._closed.is_set():
            raise _closed()
        try:
            prompt = self._render(request.messages)
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
        reading = _Reading(self._tokenizer, self._end_tokens, request.stop, logits, (ended, self._closed))
        with torch.random.fork_rng(devices=[]):  # The generator is the process's; it is put back as it was.
            torch.seed() if request.seed is None else torch.manual_seed(request.seed & MAX_SEED)
            self._model.generate(
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
        ends = list(self._end_tokens) or None
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


def _prompting(location: ModelLocation) -> tuple[Tokenizer, ChatTemplate | None]:
    if location.kind == "safetensors":
        return load_tokenizer_folder(location.path), load_template_folder(location.path)
    file = GgufFile(location.path)
    return load_tokenizer_gguf(file.reader), load_template_gguf(file.reader)


def _load(location: ModelLocation, dtype: torch.dtype) -> Any:
    """The model as transformers makes it of local files, if every weight is there."""
    path = location.path
    folder, options = (path, {}) if location.kind == "safetensors" else (path.parent, {"gguf_file": path.name})
    try:
        with redirect_stderr(StringIO()):  # Progress bars, of which not all can be switched off.
            model, found = AutoModelForCausalLM.from_pretrained(
                folder,
                dtype=dtype,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                output_loading_info=True,
                **options,
            )
    except Exception as error:  # It raises whatever it stumbles over.
        raise CheckpointError(f"transformers cannot open {path}: {one_line(str(error)):.300}") from None
    if missing := sorted(found["missing_keys"]):  # It would fill them at random and go on.
        raise CheckpointError(
            f"transformers finds {len(missing)} weights missing in {path}, first {missing[0]}: fetch the model again"
        )
    return model.eval()
