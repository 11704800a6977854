"""The axes: one module each. An axis says what to play, and proves from the step records that it was exercised.

A reference and its variant differ in the axis alone; where that is impossible the module says what else moves.
"""

from __future__ import annotations

from detharness.errors import UsageError
from detharness.probes.axes.arrival import ArrivalTime
from detharness.probes.axes.axis import Axis
from detharness.probes.axes.batch_size import BatchSize
from detharness.probes.axes.cancel import Cancel
from detharness.probes.axes.chunk import Chunk
from detharness.probes.axes.content import Content
from detharness.probes.axes.n import Samples
from detharness.probes.axes.padding import Padding
from detharness.probes.axes.page_placement import PagePlacementAxis
from detharness.probes.axes.page_size import PageSize
from detharness.probes.axes.preemption import Preemption
from detharness.probes.axes.prefix_cache import PrefixCache
from detharness.probes.axes.run_to_run import RunToRun
from detharness.probes.axes.samplers import Samplers
from detharness.probes.axes.seeds import Seeds
from detharness.probes.axes.slot import Slot
from detharness.probes.axes.threads import Threads

AXES: dict[str, Axis] = {
    axis.name: axis
    for axis in (
        BatchSize(),
        Slot(),
        Content(),
        Chunk(),
        PrefixCache(),
        PageSize(),
        PagePlacementAxis(),
        Preemption(),
        Threads(),
        Seeds(),
        Samplers(),
        Samples(),
        Cancel(),
        ArrivalTime(),
        Padding(),
        RunToRun(),  # Last: whatever the other plays left behind is there by then.
    )
}


def parse_axes(text: str) -> tuple[str, ...]:
    """Names from ``A,B`` or ``all``, each once, in the order of ``AXES``; UsageError for a name that is none."""
    asked = [name.strip() for name in text.split(",")]
    if asked == ["all"]:
        return tuple(AXES)
    for name in asked:
        if name not in AXES:
            raise UsageError(f"unknown axis {name!r} in --axes: use 'all' or names from {', '.join(AXES)}")
    return tuple(name for name in AXES if name in asked)
