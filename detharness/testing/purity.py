"""Is an output row the same bits whatever stands around it?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from detharness.errors import UsageError
from detharness.kernels.threads import intraop_threads
from detharness.testing.attribution import fewest_axes
from detharness.testing.batches import AXES, Batch, every_batch
from detharness.testing.comparison import Rows, first_difference
from detharness.testing.failures import BitsMovedError, Difference, NothingComparedError
from detharness.testing.inputs import DISTINCT, Normal, arrange, lay, stand, surround, tensors
from detharness.testing.reproduction import Script, described


def assert_row_pure(
    fn: Callable[..., Any],
    /,
    *,
    rows: Mapping[str, Normal | Tensor],
    shared: Mapping[str, object] | None = None,
    batches: Iterable[Batch] | None = None,
    reference: Batch | None = None,
    seed: int = 0,
) -> int:
    """Fail unless every output row has the bits that it has in the ``reference`` batch, in each of ``batches``.

    ``fn`` is called as ``fn(**rows, **shared)`` and returns a tensor [M, ...], or a sequence of such, for M rows.
    ``rows`` are the arguments that have a row per request: recipes of one row, or tensors [R, ...] of one R whose rows
    are taken in turn. ``shared`` are the others: tensors, recipes, anything; the same objects in every call.
    ``batches`` default to ``every_batch()``, ``reference`` to the row alone on one thread: ``Batch(rows=16)`` where a
    kernel takes no fewer. Returns how many rows were compared.

    Raises BitsMovedError for the first row that moved, with the fewest axes that move it; NothingComparedError where
    nothing was compared or all outputs are equal; UsageError where ``fn`` gives no row per row.
    """
    __tracebackhide__ = True
    judge = _Judge(fn, rows, shared or {}, reference or Batch(), seed)
    asked = list(dict.fromkeys(every_batch() if batches is None else batches))
    counts = sorted({batch.rows for batch in asked})
    for batch in asked:
        judge.look(batch, counts)
    judge.require_something()
    return judge.compared


class _Judge:
    def __init__(
        self,
        fn: Callable[..., Any],
        rows: Mapping[str, Normal | Tensor],
        shared: Mapping[str, object],
        reference: Batch,
        seed: int,
    ) -> None:
        lengths = sorted({len(value) for value in rows.values() if isinstance(value, Tensor)})
        if not rows or len(lengths) > 1:
            raise UsageError(f"rows must name inputs that all have one number of rows, found {lengths or 'no input'}")
        self._distinct = lengths[0] if lengths else DISTINCT
        if self._distinct < 2:
            raise NothingComparedError(f"rows holds {self._distinct} row: at least two are needed to tell them apart")
        self._fn, self._rows, self._shared, self._reference, self._seed = fn, rows, shared, reference, seed
        self._tables = tensors(rows, seed=seed, first=0, rows=self._distinct)
        self._operands = tensors(shared, seed=seed, first=len(rows), rows=None)
        self._expected: Rows | None = None  # In the reference batch, as far as they are known.
        self._known: set[int] = set()
        self.compared = 0

    def look(self, batch: Batch, counts: Sequence[int]) -> None:
        """Compare every row of ``batch``, or the one that stands among foreign neighbours."""
        __tracebackhide__ = True
        slots = list(range(batch.rows)) if batch.neighbours == "own" else [batch.slot]
        if all(getattr(batch, axis) == getattr(self._reference, axis) for axis in AXES if axis != "slot"):
            slots.remove(self._reference.slot)  # That one is the reference itself.
        if not slots:
            return
        ids = [(batch.row + slot - batch.slot) % self._distinct for slot in slots]
        found, expected = self._run(batch).take(slots), self._expect(ids)
        self.compared += len(slots)
        moved = found.first_unequal(expected)
        if moved is not None:
            needle = replace(batch, row=ids[moved], slot=slots[moved])
            raise self._failure(needle, first_difference(expected.take([moved]), found.take([moved])), counts)

    def require_something(self) -> None:
        """Fail where there was nothing to see."""
        __tracebackhide__ = True
        if not self.compared:
            raise NothingComparedError("no batch differs from the reference, so no row was compared")
        first = self._expect([0])
        if all(self._expect([row]).first_unequal(first) is None for row in range(1, self._distinct)):
            raise NothingComparedError(
                f"all {self._distinct} rows gave equal output, so that one took another's place could not be seen"
            )

    def _run(self, batch: Batch) -> Rows:
        arranged = {name: arrange(table, batch) for name, table in self._tables.items()}
        with intraop_threads(batch.threads):
            return Rows.of(self._fn(**arranged, **self._operands), batch.rows)

    def _expect(self, ids: Sequence[int]) -> Rows:
        for row in ids:
            if row not in self._known:
                alone = self._run(replace(self._reference, row=row)).take([self._reference.slot])
                self._expected = self._expected or alone.space(self._distinct)
                self._expected.put(row, alone)
                self._known.add(row)
        assert self._expected is not None
        return self._expected.take(ids)

    def _difference(self, needle: Batch) -> Difference | None:
        """Both calls again."""
        reference = replace(self._reference, row=needle.row)
        expected, found = self._run(reference), self._run(needle)
        return first_difference(expected.take([reference.slot]), found.take([needle.slot]))

    def _failure(self, needle: Batch, seen: Difference | None, counts: Sequence[int]) -> BitsMovedError:
        reference = replace(self._reference, row=needle.row)
        needle, axes = fewest_axes(needle, reference, counts, self._moves)
        difference = self._difference(needle) if axes else None
        if difference is None:  # The reference moves by itself, or what moved a row does not move it again.
            axes, difference = ("run to run",), seen
        assert difference is not None
        return BitsMovedError(
            subject=described(self._fn),
            axes=axes,
            rows=needle.rows,
            row=needle.row,
            left=str(reference),
            right=str(needle),
            difference=difference,
            reproduction=self._script(reference, needle, difference),
        )

    def _moves(self, batch: Batch) -> bool:
        try:
            return self._difference(batch) is not None
        except Exception:  # Nobody asked for this batch: a kernel that refuses it explains nothing.
            return False

    def _script(self, reference: Batch, needle: Batch, difference: Difference) -> str:
        script = Script()
        script.function("fn", self._fn)
        script.arguments("rows", self._rows, seed=self._seed, first=0, rows=self._distinct)
        script.arguments("shared", self._shared, seed=self._seed, first=len(self._rows), rows=None)
        threads = None
        for name, batch in (("left", reference), ("right", needle)):
            if batch.threads != threads:
                threads = batch.threads
                script.line(f"torch.set_num_threads({threads})")
            script.line(f"{name} = fn(**{{name: {_arranged(script, batch)} for name, x in rows.items()}}, **shared)")
        script.comparison(f"[{reference.slot}]", f"[{needle.slot}]", difference)
        return script.text()


def _arranged(script: Script, batch: Batch) -> str:
    """``inputs.arrange`` written out, with what it calls."""
    script.helper(stand)
    code = f"stand(x, rows={batch.rows}, row={batch.row}, slot={batch.slot})"
    if batch.neighbours != "own":
        script.helper(surround)
        code = f"surround({code}, slot={batch.slot}, neighbours={batch.neighbours!r})"
    if batch.layout != "packed":
        script.helper(lay)
        code = f"lay({code}, layout={batch.layout!r})"
    return code
