"""Everything one arm plays, in order: references before the plays that are compared with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from detharness.probes.paths.axes import PATH_AXES
from detharness.probes.paths.bench import PathBench, Play


def arm_plays(bench: PathBench, axes: Sequence[str], trials: int) -> list[Play]:
    """Solo replies, then the plays of ``axes`` in ``trials`` rounds; one without anything random is played once."""
    plays = [bench.solo(probe) for probe in bench.probes]
    for number in range(trials):
        for name in axes:
            plays += PATH_AXES[name].plays(replace(bench, round=number))
    once = {play.key: play for play in plays}
    return sorted(once.values(), key=lambda play: play.at_the_end)
