"""Which computed rows a reply rests on: its own, and those behind pages that it found in the prefix cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from detharness.targets.protocol import RowGroup, StepRecord


@dataclass(frozen=True, order=True)
class RowKey:
    """One computed row: a position may be computed twice, in two steps. Sorts in order of computation."""

    step: int
    position: int
    request_id: str
    sample_index: int


def lineage(trace: Sequence[StepRecord], request_id: str, sample: int = 0) -> list[RowKey]:
    """Rows that a sample of ``request_id`` rests on, in order of computation; recomputed rows stand twice."""
    wrote: dict[int, RowKey] = {}  # slot -> the row whose key and value stand there
    rows: dict[RowKey, None] = {}
    for record in trace:
        found = {(name, index): tokens for name, index, tokens in record.cache_hits}
        for group in record.groups:
            mine = (group.request_id, group.sample_index) == (request_id, sample)
            if mine:
                rows |= {wrote[_slot(record, group, at)]: None for at in range(found.get((request_id, sample), 0))}
            for at in range(group.start_position, group.start_position + len(group.token_ids)):
                row = RowKey(record.step, at, group.request_id, group.sample_index)
                wrote[_slot(record, group, at)] = row
                if mine:
                    rows[row] = None
    return sorted(rows)


def _slot(record: StepRecord, group: RowGroup, position: int) -> int:
    page, offset = divmod(position, record.page_size)
    return group.block_table[page] * record.page_size + offset
