"""The axes of paths, in the order of reports."""

from __future__ import annotations

from detharness.errors import UsageError
from detharness.probes.paths.axis import PathAxis
from detharness.probes.paths.continuous_batching import ContinuousBatching
from detharness.probes.paths.padded_batch import PaddedBatch
from detharness.probes.paths.run_to_run import RunToRun

PATH_AXES: dict[str, PathAxis] = {axis.name: axis for axis in (RunToRun(), PaddedBatch(), ContinuousBatching())}


def parse_path_axes(text: str) -> tuple[str, ...]:
    """Names from ``A,B`` or ``all``, each once, in the order of ``PATH_AXES``; UsageError for a name that is none."""
    asked = [name.strip() for name in text.split(",")]
    if asked == ["all"]:
        return tuple(PATH_AXES)
    for name in asked:
        if name not in PATH_AXES:
            raise UsageError(
                f"unknown axis {name!r} in --axes for a transformers target: use 'all' or names from "
                f"{', '.join(PATH_AXES)}"
            )
    return tuple(name for name in PATH_AXES if name in asked)
