"""Replay of a recorded schedule: the same rows, positions and pages through a model, no scheduler involved.

The tokens are teacher-forced from the trace, so the arithmetic of one schedule can be compared across kernel
sets even where they would have chosen different tokens.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from collections.abc import Sequence as Many

import torch
from torch import Tensor

from detharness.engine.batch import paged_batch
from detharness.engine.decoder import Decoder
from detharness.engine.outputs import StepRecord
from detharness.engine.pages import KVPages
from detharness.engine.params import FreePages
from detharness.errors import UsageError
from detharness.kernels.threads import intraop_threads


def replay(decoder: Decoder, trace: Many[StepRecord]) -> Iterator[Tensor]:
    """Yield, per recorded step, logits fp32 [len(logit_rows), V] of the rows whose logits were computed then.

    Under the kernel set that was recorded they are those of the live step bit by bit, for library kernels too: the
    head sees as many rows, and torch has as many threads.
    The trace must start at the engine's first step: pages are filled by replaying the steps that wrote them.
    """
    if not trace or trace[0].step != 0 or any(b.step != a.step + 1 for a, b in itertools.pairwise(trace)):
        raise UsageError("a replay needs the whole trace, from step 0 without gaps")
    used = max((page for record in trace for group in record.groups for page in group.block_table), default=0) + 1
    pages = KVPages(decoder.config, used, trace[0].page_size, decoder.dtype, FreePages.KEEP)
    for record in trace:
        if not record.groups:
            yield torch.empty(0, decoder.config.vocab_size)
            continue
        token_ids, batch = paged_batch(record.groups, record.page_size)
        rows = torch.tensor(record.logit_rows, dtype=torch.int64)
        with intraop_threads(record.threads):
            logits = decoder.forward(token_ids, batch, pages, rows)
        yield logits
