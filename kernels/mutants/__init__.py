"""Mutants: kernel sets with one deliberate fault each, modelled on bugs that were reported in public.

They prove the probe: it must find every one of them, name the axis, and say nothing of the sound kernels they wrap.
May import what ``kernels`` may; no engine and no probe is known here. Nothing but a trial of the probe may run them.
"""

from __future__ import annotations

from detharness.errors import UsageError
from detharness.kernels.mutants import drawing, memory, paging, products, rowwise, tiling
from detharness.kernels.mutants.faulty import Fault, FaultyKernels

__all__ = ["MUTANTS", "Fault", "FaultyKernels", "mutants_named"]

MUTANTS: dict[str, type[FaultyKernels]] = {
    mutant.fault.name: mutant
    for mutant in (
        products.OneRowKernel,
        products.OddBatchSize,
        products.SplitKByRows,
        products.AllReduceBySize,
        products.AccumulatorByRows,
        products.PaddedBucket,
        products.RemainderRows,
        products.SumPerThread,
        products.BatchScale,
        products.ExpertsInOrderOfArrival,
        rowwise.NormBlockByTokens,
        rowwise.RowsPerProgram,
        rowwise.ScalarTail,
        rowwise.OnePositionForAll,
        tiling.SplitsByBatch,
        tiling.TileByLongestQuery,
        tiling.TileByMeanQuery,
        tiling.SplitByTableWidth,
        tiling.ChunkBorder,
        tiling.DecodeKernel,
        paging.PagesInPoolOrder,
        paging.PageNumberRead,
        paging.BlockOfPageSize,
        paging.LastPageReadWhole,
        paging.NeighboursNan,
        paging.StaleTailInMaximum,
        paging.KvScaleOfStep,
        paging.PaddingRowsWritten,
        memory.PrefixHitPath,
        memory.OneBlockPrefix,
        memory.LogprobsLeftUnset,
        memory.LateWrite,
        memory.TunedWhileServing,
        drawing.NoiseByRank,
        drawing.SharedStream,
        drawing.SeedsDropped,
        drawing.GreedyBesideSampled,
        drawing.MaskOfTheBatch,
        drawing.MaximumOfTheBatch,
    )
}


def mutants_named(text: str | None) -> tuple[type[FaultyKernels], ...]:
    """Mutants from ``A,B``, each once, in the order of ``MUTANTS``; all of them for None; UsageError for no mutant."""
    if text is None:
        return tuple(MUTANTS.values())
    asked = [name.strip() for name in text.split(",")]
    for name in asked:
        if name not in MUTANTS:
            raise UsageError(f"unknown mutant {name!r} in --only: use names from {', '.join(MUTANTS)}")
    return tuple(mutant for name, mutant in MUTANTS.items() if name in asked)
