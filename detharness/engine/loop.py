"""The engine loop: add requests, step, collect completions. One process, one model, one block pool."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from collections.abc import Sequence as Many
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from detharness.checkpoints.detokenize import IncrementalDetokenizer
from detharness.checkpoints.tokenizer import Tokenizer
from detharness.engine.batch import paged_batch
from detharness.engine.blocks import BlockPool
from detharness.engine.decoder import HEAD, Decoder, Observer
from detharness.engine.outputs import Completion, RowGroup, RowKind, StepRecord, TokenLogprob
from detharness.engine.pages import KVPages, resolve_num_blocks
from detharness.engine.params import MAX_SEED, EngineConfig
from detharness.engine.sampler import draw, token_logprob
from detharness.engine.scheduler import Scheduler, Slice
from detharness.engine.sequence import Request, Sequence, TokenEvent
from detharness.engine.stopping import advance
from detharness.errors import RequestError, UsageError
from detharness.kernels.threads import intraop_threads

StepObserver = Callable[[int, Many[tuple[str, int, int]], int, str, Tensor], None]
"""Called with (step, (request id, sample index, position) per row, layer, operator, output rows)."""


class Engine:
    """Continuous batching over a ``Decoder``; every step returns its ``StepRecord``.

    ``end_tokens`` end a sequence unless it ignores them. Finished samples collect in ``finished`` in the order
    in which they finished, until ``take_finished``.
    """

    def __init__(
        self, decoder: Decoder, tokenizer: Tokenizer, end_tokens: tuple[int, ...], config: EngineConfig
    ) -> None:
        if decoder.precision != config.dtype:
            raise UsageError(f"the model is loaded in {decoder.precision}, the engine asks for {config.dtype}")
        self.config = config
        self.num_blocks = resolve_num_blocks(decoder.config, config, decoder.dtype)
        self._decoder = decoder
        self._tokenizer = tokenizer
        self._end_tokens = frozenset(end_tokens)
        self._pages = KVPages(decoder.config, self.num_blocks, config.page_size, decoder.dtype, config.free_pages)
        self._pool = BlockPool(
            self.num_blocks,
            config.page_size,
            config.page_placement,
            config.placement_seed,
            self._pages.on_release,
        )
        self._scheduler = Scheduler(config, self._pool, decoder.config.max_positions)
        self._step = 0
        self._arrivals = 0
        self._live: dict[str, list[Sequence]] = {}
        self._finished: list[Completion] = []
        self._events: list[tuple[Callable[[TokenEvent], None], TokenEvent]] = []

    @property
    def busy(self) -> bool:
        """Whether any sequence waits or runs."""
        return bool(self._scheduler.waiting or self._scheduler.running)

    @property
    def step_number(self) -> int:
        """Steps taken so far; also the number of the next step."""
        return self._step

    def add(self, request: Request) -> None:
        """Queue a request after those already here; it is refused whole or taken whole."""
        self._check(request)
        seed = request.sampling.seq_seed
        if seed is None:
            seed = secrets.randbelow(MAX_SEED + 1)
        samples = [
            Sequence(
                request=request,
                sample_index=index,
                seq_seed=seed,
                order=self._arrivals,
                detokenizer=IncrementalDetokenizer(self._tokenizer),
                tokens=list(request.token_ids),
            )
            for index in range(request.sampling.n)
        ]
        for sequence in samples:
            self._scheduler.add(sequence)
        self._arrivals += 1
        self._live[request.request_id] = samples

    def _check(self, request: Request) -> None:
        name, model = repr(request.request_id), self._decoder.config
        if request.request_id in self._live:
            raise RequestError(f"request id {name} is already running: give each request its own id")
        odd = [token for token in request.token_ids if not isinstance(token, int) or isinstance(token, bool)]
        if odd:  # A tensor would round it without a word.
            raise RequestError(f"request {name} holds {odd[0]!r} among its token ids: give whole numbers")
        if not request.token_ids:
            raise RequestError(f"request {name} has an empty prompt: give it at least one token")
        if len(request.token_ids) >= model.max_positions:
            raise RequestError(
                f"request {name} has a prompt of {len(request.token_ids)} tokens, and the model's context holds "
                f"{model.max_positions} with at least one for the reply: shorten the prompt"
            )
        bad = [token for token in request.token_ids if not 0 <= token < model.vocab_size]
        if bad:
            raise RequestError(f"request {name} holds token id {bad[0]}, outside the vocabulary of {model.vocab_size}")

    def abort(self, request_id: str) -> bool:
        """End every sample of a request now; False if none was live."""
        samples = self._live.pop(request_id, None)
        if samples is None:
            return False
        for sequence in samples:
            if sequence.finish_reason is None:
                sequence.finish_reason = "aborted"
                sequence.text += sequence.detokenizer.flush()
                self._scheduler.remove(sequence, self._step)
                self._finished.append(sequence.completion())
        return True

    def take_finished(self) -> list[Completion]:
        """Completions since the last call, in the order in which they finished."""
        finished, self._finished = self._finished, []
        return finished

    def step(self, observe: StepObserver | None = None) -> StepRecord:
        """Schedule, compute and sample one step; an idle engine records a step without rows.

        Streaming callbacks are called last, when the step is whole: they may add and abort requests. What one raises
        comes out of here (several as an ExceptionGroup) in place of the record, and the engine can go on.
        """
        with intraop_threads(self.config.threads):
            plan = self._scheduler.schedule(self._step)
            groups = [self._group(piece) for piece in plan.slices]
            logit_rows, sampled = self._compute(plan.slices, groups, observe) if groups else ((), [])
            record = StepRecord(
                step=self._step,
                groups=tuple(replace(group, sampled=tokens) for group, tokens in zip(groups, sampled, strict=True)),
                preempted=tuple(plan.preempted),
                cache_hits=tuple(plan.cache_hits),
                kernels=self._decoder.kernels.name,
                backend=self._decoder.kernels.backend,
                plan_ids=self._decoder.kernels.plan_ids(),
                threads=torch.get_num_threads(),
                page_size=self.config.page_size,
                num_blocks=self.num_blocks,
                logit_rows=logit_rows,
            )
        self._step += 1
        self._stream()
        return record

    def _group(self, piece: Slice) -> RowGroup:
        sequence = piece.sequence
        if piece.start < sequence.high_water:
            kind: RowKind = "recompute"
        elif piece.start < sequence.prompt_length:
            kind = "prefill"
        else:
            kind = "decode"
        return RowGroup(
            request_id=sequence.request.request_id,
            sample_index=sequence.sample_index,
            kind=kind,
            start_position=piece.start,
            token_ids=tuple(sequence.tokens[piece.start : piece.start + piece.count]),
            block_table=tuple(sequence.block_table),
            sampled=(),
        )

    def _compute(
        self, slices: Many[Slice], groups: Many[RowGroup], observe: StepObserver | None
    ) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
        """Run the rows, record prompt logprobs, draw the next tokens and append them.

        Returns the rows whose logits were computed, and the tokens drawn per slice.
        """
        token_ids, batch = paged_batch(groups, self.config.page_size)
        wanted = _LogitRows()
        for piece, first in zip(slices, batch.row_starts.tolist()[:-1], strict=True):
            wanted.add(piece, first)
        rows = wanted.prompt_rows + wanted.sample_rows
        observer: Observer | None = None
        if observe is not None:
            names = [
                (group.request_id, group.sample_index, group.start_position + offset)
                for group in groups
                for offset in range(len(group.token_ids))
            ]

            def observer(layer: int, operator: str, output: Tensor) -> None:
                seen = [names[row] for row in rows] if operator == HEAD else names
                observe(self._step, seen, layer, operator, output)

        logits = self._decoder.forward(token_ids, batch, self._pages, torch.tensor(rows, dtype=torch.int64), observer)
        self._record_prompt(wanted, logits[: len(wanted.prompt_rows)])
        drawn = self._draw([piece.sequence for piece in wanted.sampling], logits[len(wanted.prompt_rows) :])
        # Nothing above moves a sequence, so a step that fails in its arithmetic can be taken again.
        for piece in slices:
            self._scheduler.computed(piece)
        for token in drawn:
            self._advance(token)
        tokens = {token.sequence.name: token.token_id for token in drawn}
        return tuple(rows), [
            (tokens[piece.sequence.name],) if piece.sequence.name in tokens else () for piece in slices
        ]

    def _record_prompt(self, wanted: _LogitRows, logits: Tensor) -> None:
        if not len(logits):
            return
        logprobs = self._decoder.kernels.log_softmax(logits)
        for (sequence, target), row in zip(wanted.prompt_targets, logprobs, strict=True):
            top = sequence.request.sampling.prompt_logprobs
            assert top is not None
            sequence.prompt_logprobs.append(token_logprob(row, target, top, None))

    def _draw(self, sequences: Many[Sequence], logits: Tensor) -> list[_Drawn]:
        if not sequences:
            return []
        kernels = self._decoder.kernels
        limit = min(self._tokenizer.vocab_size, self._decoder.config.vocab_size)
        with torch.inference_mode():
            sampled = draw(kernels, logits, sequences, limit)
            asked = [row for row, s in enumerate(sequences) if s.request.sampling.logprobs is not None]
            raw = dict(zip(asked, kernels.log_softmax(logits[asked]), strict=True)) if asked else {}
        drawn: list[_Drawn] = []
        for row, (sequence, token) in enumerate(zip(sequences, sampled.token_ids.tolist(), strict=True)):
            params = sequence.request.sampling
            entry = None
            if params.logprobs is not None:
                processed = sampled.processed_logprobs if params.processed_logprobs else None
                entry = token_logprob(raw[row], token, params.logprobs, None if processed is None else processed[row])
            captured = logits[row].numpy().copy() if sequence.request.capture_logits else None
            drawn.append(_Drawn(sequence, token, entry, captured))
        return drawn

    def _advance(self, drawn: _Drawn) -> None:
        sequence, request = drawn.sequence, drawn.sequence.request
        if drawn.logprob is not None:
            sequence.logprobs.append(drawn.logprob)
        if drawn.logits is not None:
            sequence.logits.append(drawn.logits)
        text = advance(sequence, drawn.token_id, self._end_tokens, self._decoder.config.max_positions)
        if sequence.finish_reason is not None:
            self._scheduler.remove(sequence, self._step)
            self._finished.append(sequence.completion())
            if all(sample.finish_reason is not None for sample in self._live[request.request_id]):
                del self._live[request.request_id]
        if request.on_token is not None:
            event = TokenEvent(*sequence.name, drawn.token_id, text, sequence.finish_reason)
            self._events.append((request.on_token, event))

    def _stream(self) -> None:
        """Call the step's callbacks: every one is called, whatever another raises."""
        events, self._events = self._events, []
        failures: list[Exception] = []
        for on_token, event in events:
            try:
                on_token(event)
            except Exception as failure:
                failures.append(failure)
        if len(failures) == 1:
            raise failures[0]
        if failures:
            raise ExceptionGroup("several streaming callbacks failed in one step", failures)


@dataclass(frozen=True)
class _Drawn:
    """A token drawn for a sequence, with its logprob entry and its logits row [V] where the request wants them."""

    sequence: Sequence
    token_id: int
    logprob: TokenLogprob | None
    logits: NDArray[np.float32] | None


class _LogitRows:
    """Which rows of a step need logits: prompt rows whose next token is to be scored, and rows to sample."""

    def __init__(self) -> None:
        self.prompt_rows: list[int] = []
        self.prompt_targets: list[tuple[Sequence, int]] = []
        self.sample_rows: list[int] = []
        self.sampling: list[Slice] = []

    def add(self, piece: Slice, first_row: int) -> None:
        sequence = piece.sequence
        if sequence.request.sampling.prompt_logprobs is not None:
            # Rows recomputed after preemption were scored the first time.
            begin = max(piece.start, len(sequence.prompt_logprobs))
            for position in range(begin, min(piece.start + piece.count, sequence.prompt_length - 1)):
                self.prompt_rows.append(first_row + position - piece.start)
                self.prompt_targets.append((sequence, sequence.request.token_ids[position + 1]))
        if piece.samples:
            self.sample_rows.append(first_row + piece.count - 1)
            self.sampling.append(piece)
