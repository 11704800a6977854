"""transformers' continuous batching, played so that the same requests always meet in the same forward passes.

Its manager runs in a thread of its own and takes requests from a queue whenever it looks. So requests are queued before
the thread starts, and later ones from inside a forward pass: the schedule is then a function of the requests.
"""

from __future__ import annotations

import copy
import gc
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from detharness.errors import DetharnessError
from detharness.rendering.escape import one_line
from detharness.targets.paths import ForwardPass, PathError, PathRequest

PAGE_SIZE = 16
_SMALLEST_BUDGET = 256  # Tokens of one forward pass; a longer prompt raises it, so that none is cut into chunks.
_LOGGER = "ContinuousBatchingLogger"  # Of transformers. What it has to say comes back in the reason.


def twin(module: Any) -> Any:
    """A model of its own on the same weights. A manager reconfigures the attention of the model it is attached to
    (https://github.com/huggingface/transformers/issues/48296), and nobody else may compute with that one.
    """
    return copy.deepcopy(module, {id(weight): weight for weight in module.parameters()})


class ContinuousPlay:
    """One play on ``module``, to which nothing else may be attached. After ``run``: token ids of every request,
    logits rows [V] of the watched ones, and the forward passes.
    """

    def __init__(self, module: Any, requests: Sequence[PathRequest], end_tokens: Sequence[int]) -> None:
        self._module = module
        self._requests = requests
        self._end_tokens = list(end_tokens)
        self._late = sorted((r for r in requests if r.arrives), key=lambda request: request.arrives)
        self._failure: Exception | None = None
        self.token_ids: dict[str, list[int]] = {}
        self.rows: dict[str, list[Tensor]] = {request.request_id: [] for request in requests if request.watched}
        self.forwards: list[ForwardPass] = []

    def run(self) -> None:
        """Play to the end; PathError where this version of transformers cannot, or does not show its schedule."""
        with _silence(), _cheap_collections(), self._attached() as manager:
            hook = self._module.register_forward_hook(self._seen(manager), with_kwargs=True)
            try:
                for request in self._requests:
                    if not request.arrives:
                        self._add(manager, request)
                manager.start()
                self._collect(manager)
            finally:
                manager.stop(block=True, hard_stop=True)
                manager.destroy()
                hook.remove()
        for name, rows in self.rows.items():
            if len(rows) != len(self.token_ids[name]):
                raise PathError(
                    f"continuous batching gave {len(self.token_ids[name])} tokens for {len(rows)} rows of logits: it "
                    "cannot be told which row a token came from"
                )

    @contextmanager
    def _attached(self) -> Iterator[Any]:
        try:
            manager = self._manager()
        except Exception as error:  # Versions differ in what they take; whatever it stumbles over is the reason.
            raise _unavailable(error) from error
        yield manager

    def _manager(self) -> Any:
        from transformers import GenerationConfig
        from transformers.generation.configuration_utils import ContinuousBatchingConfig

        prompts = sum(len(request.token_ids) for request in self._requests)
        pages = sum(-(-(len(r.token_ids) + r.max_tokens) // PAGE_SIZE) for r in self._requests)
        return self._module.init_continuous_batching(
            generation_config=GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0),
            continuous_batching_config=ContinuousBatchingConfig(
                page_size=PAGE_SIZE,
                num_blocks=2 * pages,  # Its scheduler holds admissions back when few pages are free.
                max_batch_tokens=max(_SMALLEST_BUDGET, prompts),
                max_requests_per_batch=max(2, len(self._requests)),
                allow_block_sharing=False,  # Prefix caching would be another axis.
                use_async_batching=False,
                use_cuda_graph=False,
                auto_switch_to_flash=False,
            ),
        )

    def _add(self, manager: Any, request: PathRequest) -> None:
        manager.add_request(
            list(request.token_ids),
            request_id=request.request_id,
            max_new_tokens=request.max_tokens,
            eos_token_id=[] if request.ignore_eos else self._end_tokens,
        )

    def _seen(self, manager: Any) -> Any:
        """The hook that reads each forward pass, in the manager's thread; an error in it is kept for the caller's."""

        def look(module: nn.Module, args: object, inputs: dict[str, Any], output: Any) -> None:
            try:
                self._look(manager, output.logits)
            except Exception as error:
                self._failure = error
                raise

        return look

    def _look(self, manager: Any, logits: Tensor) -> None:
        batch = manager.batch_processor.inputs_and_outputs.requests_in_batch
        names = tuple(entry.state.request_id for entry in batch)
        tokens = tuple(entry.query_length for entry in batch)
        drawing = [name for name, entry in zip(names, batch, strict=True) if entry.has_new_token]
        if logits.shape[:2] != (1, len(drawing)):
            raise PathError(f"continuous batching gave logits {list(logits.shape)} for {len(drawing)} requests")
        for index, name in enumerate(drawing):
            if name in self.rows:
                self.rows[name].append(logits[0, index].float().clone())
        self.forwards.append(ForwardPass(names, tokens, (0,) * len(names), torch.get_num_threads()))
        while self._late and self._late[0].arrives <= len(self.forwards):
            self._add(manager, self._late.pop(0))

    def _collect(self, manager: Any) -> None:
        while len(self.token_ids) < len(self._requests):
            result = manager.get_result(timeout=1.0)
            if result is None:
                if manager.is_running():
                    continue
                raise _unavailable(self._failure or RuntimeError("its thread ended early"))
            if result.error is not None:
                raise _unavailable(self._failure or RuntimeError(str(result.error)))
            self.token_ids[result.request_id] = list(result.generated_tokens)
            if self._late and len(self.token_ids) + len(self._late) == len(self._requests):
                self._add(manager, self._late.pop(0))  # All who came are done, so nobody counts passes any more.


@contextmanager
def _cheap_collections() -> Iterator[None]:
    """A manager collects garbage three times as it ends; what was there before it need not be walked each time."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextmanager
def _silence() -> Iterator[None]:
    logger = logging.getLogger(_LOGGER)
    before = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = before


def _unavailable(error: Exception) -> DetharnessError:
    if isinstance(error, DetharnessError):
        return error
    import transformers

    return PathError(
        f"continuous batching does not run under transformers {transformers.__version__}: "
        f"{type(error).__name__}: {one_line(str(error)):.200}"
    )
