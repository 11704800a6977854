"""From recorded row groups to the tensors of one forward pass; used by the live loop and by replay alike."""

from __future__ import annotations

from collections.abc import Sequence as Many

import torch
from torch import Tensor

from detharness.engine.outputs import RowGroup
from detharness.kernels.contract import PagedBatch


def paged_batch(groups: Many[RowGroup], page_size: int) -> tuple[Tensor, PagedBatch]:
    """Token ids [M] and the paged batch of a step's row groups, in their order."""
    token_ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    starts = [0]
    contexts: list[int] = []
    for group in groups:
        end = group.start_position + len(group.token_ids)
        token_ids.extend(group.token_ids)
        positions.extend(range(group.start_position, end))
        table = group.block_table
        slots.extend(table[at // page_size] * page_size + at % page_size for at in range(group.start_position, end))
        starts.append(len(token_ids))
        contexts.append(end)
    width = max(len(group.block_table) for group in groups)
    tables = [list(group.block_table) + [-1] * (width - len(group.block_table)) for group in groups]
    return torch.tensor(token_ids, dtype=torch.int64), PagedBatch(
        positions=torch.tensor(positions, dtype=torch.int64),
        slots=torch.tensor(slots, dtype=torch.int64),
        row_starts=torch.tensor(starts, dtype=torch.int64),
        context_lens=torch.tensor(contexts, dtype=torch.int64),
        block_tables=torch.tensor(tables, dtype=torch.int64),
        page_size=page_size,
    )
