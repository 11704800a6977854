"""Row probes: is an operator's output row the same bits alone and in any company?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from detharness.kernels.threads import intraop_threads

COUNTS = tuple(range(1, 71))
BESIDE = (1, 2, 3, 4, 5, 8, 9, 16, 17, 33, 70)  # Row counts with hostile neighbours, beside the borders.
HOSTILE = {"NaN": torch.nan, "infinite": torch.inf, "huge": 3.0e38, "subnormal": 1.0e-40}


@dataclass(frozen=True)
class Finding:
    """What one probe found: how many comparisons it made, and the first that failed (None: none did)."""

    operator: str
    cases: int
    failure: str | None


@dataclass(frozen=True)
class RowOperator:
    """An operator on independent rows. ``run(x [M, width], ids [M])`` gives output rows [M, ...].

    ids say which row it is (its position, its seed, its token), so that it keeps them in any slot.
    """

    name: str
    width: int
    dtype: torch.dtype
    run: Callable[[Tensor, Tensor], Tensor]
    borders: tuple[int, ...] = ()

    def probe(self, threads: Sequence[int]) -> Finding:
        """Compare rows alone with the same rows among others; the first difference ends the probe."""
        return _Probe(self, threads).find()


class _RowMovedError(Exception):
    """Raised with the case in words."""


class _Probe:
    def __init__(self, operator: RowOperator, threads: Sequence[int]) -> None:
        self._operator = operator
        self._threads = threads
        around = {max(1, border + step) for border in operator.borders for step in (-1, 0, 1)}
        self._counts = sorted(set(COUNTS) | around)
        self._beside = sorted(set(BESIDE) | around)
        generator = torch.Generator().manual_seed(20261201)
        most = self._counts[-1]
        self._rows = torch.randn(most, operator.width, generator=generator).to(operator.dtype)
        self._ids = torch.arange(most)
        self._cases = 0

    def find(self) -> Finding:
        """Play every case."""
        try:
            with intraop_threads(self._threads[0]):
                self._alone = self._each_alone()
            for threads in self._threads:
                with intraop_threads(threads):
                    self._by_count(threads)
                    self._among_hostile(threads)
            self._elsewhere()
        except _RowMovedError as moved:
            return Finding(self._operator.name, self._cases, str(moved))
        return Finding(self._operator.name, self._cases, None)

    def _each_alone(self) -> Tensor:
        return torch.cat([self._run(self._rows[i : i + 1], self._ids[i : i + 1]) for i in range(len(self._rows))])

    def _run(self, rows: Tensor, ids: Tensor) -> Tensor:
        return bits(self._operator.run(rows, ids))

    def _compare(self, found: Tensor, ids: Tensor, case: str) -> None:
        self._cases += len(ids)
        if not torch.equal(found, self._alone[ids]):
            slot = next(i for i, row in enumerate(ids.tolist()) if not torch.equal(found[i], self._alone[row]))
            raise _RowMovedError(f"{case}: the row in slot {slot} differs from the same row alone")

    def _by_count(self, threads: int) -> None:
        for count in self._counts:
            ids = self._ids[:count]
            self._compare(self._run(self._rows[:count], ids), ids, f"{count} rows, {threads} threads")
            turned = ids.roll(count // 2 + 1)
            self._compare(self._run(self._rows[turned], turned), turned, f"{count} rows turned, {threads} threads")

    def _among_hostile(self, threads: int) -> None:
        for count in self._beside:
            slots = torch.tensor(sorted({0, count // 2, count - 1}))
            for name, value in HOSTILE.items():
                rows = torch.full((count, self._operator.width), value).to(self._operator.dtype)
                rows[slots] = self._rows[slots]
                found = self._run(rows, self._ids[:count])[slots]
                self._compare(found, slots, f"{count} rows, others {name}, {threads} threads")

    def _elsewhere(self) -> None:
        """Rows that stand apart at odd addresses, and one row after a call of another shape and content."""
        count, width = self._counts[-1], self._operator.width
        apart = torch.full((count, width + 3), torch.nan, dtype=self._operator.dtype)
        apart[:, 1 : width + 1] = self._rows
        self._compare(self._run(apart[:, 1 : width + 1], self._ids), self._ids, f"{count} rows at odd addresses")
        self._run(torch.full_like(self._rows, torch.nan), self._ids)
        self._compare(self._run(self._rows[:1], self._ids[:1]), self._ids[:1], "one row after a call with NaN")


def bits(x: Tensor) -> Tensor:
    """The raw bits of fp32, bf16 or int64 output rows, each row flat."""
    flat = x.reshape(len(x), -1).contiguous()
    return flat.view({torch.float32: torch.int32, torch.bfloat16: torch.int16}.get(flat.dtype, flat.dtype))
