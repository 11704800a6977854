"""padded_batch: the probe alone against one row of a left-padded batch of ``generate``.

pads=N: alone, but N positions wider than it needs: padding against none. copies=N: beside itself, without padding, in
the last row. longer: beside one longer neighbour, so padded. ragged: all probes and some neighbours, five at a time.
"""

from __future__ import annotations

from detharness.probes.axes.axis import Counters
from detharness.probes.paths.axis import PathAxis, watched_passes
from detharness.probes.paths.bench import PathBench, Play
from detharness.probes.scenario import Probe, Watch, solo_reference
from detharness.targets.paths import PathRequest, PathRun

PADS = (1, 32)
COPIES = (2, 5)
RAGGED = 5


class PaddedBatch(PathAxis):
    """Several prompts in one call of ``generate``."""

    name = "padded_batch"

    def plays(self, bench: PathBench) -> list[Play]:
        """Each probe wider, in copies and beside a longer one; then all of them together."""
        plays = []
        for probe in bench.each:
            plays += [self._wider(bench, probe, pads) for pads in PADS]
            plays += [self._copies(bench, probe, copies) for copies in COPIES]
            plays.append(self._beside_a_longer_one(bench, probe))
        return plays + [self._ragged(bench, number, probes) for number, probes in bench.groups(RAGGED)]

    def exercised(self, watch: Watch, trial: PathRun) -> Counters:
        """Rows of the batch and width of the padding, in the passes in which there was either."""
        seen = [one for one in watched_passes(watch, trial) if one != (1, 0)]
        if not seen:
            return {}
        return {
            "rows": sorted({rows for rows, _ in seen}),
            "pad_widths": sorted({padding for _, padding in seen}),
            "batched_passes": sum(rows > 1 for rows, _ in seen),
            "padded_passes": sum(padding > 0 for _, padding in seen),
        }

    def _wider(self, bench: PathBench, probe: Probe, pads: int) -> Play:
        level = f"pads={pads}"
        request = bench.request(probe)
        return Play(
            f"{level}/{probe.id}",
            "generate",
            (request,),
            (self._watch(probe, request, level),),
            pad_to=len(probe.token_ids) + pads,
        )

    def _copies(self, bench: PathBench, probe: Probe, copies: int) -> Play:
        level = f"copies={copies}"
        others = [bench.request(probe, f"{probe.id}~{index}", watched=False) for index in range(1, copies)]
        mine = bench.request(probe)
        return Play(f"{level}/{probe.id}", "generate", (*others, mine), (self._watch(probe, mine, level),))

    def _beside_a_longer_one(self, bench: PathBench, probe: Probe) -> Play:
        key = f"longer/round={bench.round}/{probe.id}"
        mine = bench.request(probe)
        other = bench.filler(bench.fillers(key), 0, mine.max_tokens, len(probe.token_ids) + bench.longer)
        return Play(key, "generate", (mine, other), (self._watch(probe, mine, "longer"),))

    def _ragged(self, bench: PathBench, number: int, probes: tuple[Probe, ...]) -> Play:
        key = f"ragged/round={bench.round}/{number}"
        mine = [bench.request(probe) for probe in probes]
        fillers, most = bench.fillers(key), max(request.max_tokens for request in mine)
        others = [bench.filler(fillers, index, most) for index in range(RAGGED - len(probes))]
        watches = [self._watch(probe, request, "ragged") for probe, request in zip(probes, mine, strict=True)]
        return Play(key, "generate", (*mine, *others), tuple(watches))

    def _watch(self, probe: Probe, request: PathRequest, level: str) -> Watch:
        return Watch(probe.id, request.request_id, self.name, level, solo_reference(probe.id))
