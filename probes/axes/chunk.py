"""chunk: the prompt in one step against the prompt in pieces. The probe is alone in both.

Besides small chunks, the borders: the last piece one row long ("one_over", the row a decode-shaped kernel would
take), exactly full ("even"), and one short of full ("one_under"). "borders": pieces around a page, the KV grid, and
the row counts at which the kernels change, for the longest probe, with some of its reply in its prompt where that is
too short.
"""

from __future__ import annotations

from detharness.probes.axes.axis import Axis, AxisDepth, Counters, seats
from detharness.probes.bench import KV_GRID, Bench
from detharness.probes.scenario import Played, Probe, Scenario, Watch, solo_reference

SMALL = 16
SMALLEST = 4  # Below this a prompt is not so much chunked as decoded.


def chunk_with_rest(length: int, rest: int) -> int | None:
    """The largest chunk that splits ``length`` tokens with this rest (-1: one short of full); None if none does."""
    for chunk in range(length - 1, SMALLEST - 1, -1):
        if (length - rest) % chunk == 0:
            return chunk
    return None


class Chunk(Axis):
    """Where prefill is cut."""

    name = "chunk"
    levels = ("one_over", "small", "even", "one_under", "budget", "borders")

    def scenarios(self, bench: Bench, depth: AxisDepth) -> list[Scenario]:
        """Each probe alone under each chunk size that cuts it."""
        plays = []
        for probe in bench.longest(depth.probes):
            plays.append(bench.solo(probe))
            for level, chunk in self._chunks(bench, probe):
                if not depth.has(level):
                    continue
                watch = Watch(probe.id, probe.id, self.name, level, solo_reference(probe.id))
                arrivals = [bench.arrival(probe, depth.tokens)]
                key = f"chunk/{level}={chunk}/{probe.id}"
                plays.append(bench.scenario(key, arrivals, [watch], max_step_tokens=chunk))
        if depth.has("borders"):
            plays += self._borders(bench, bench.longest(1)[0])
        return plays

    def _borders(self, bench: Bench, probe: Probe) -> list[Scenario]:
        borders = (bench.config.page_size, KV_GRID, *bench.dispatch_borders)
        plays = []
        for chunk in sorted({border + offset for border in borders for offset in (-1, 0, 1)}):
            held = bench.stretched(probe, max(len(probe.token_ids), chunk + 1))
            if held is None or chunk < SMALLEST:
                continue
            name = held.arrival.request_id
            watch = Watch(probe.id, name, self.name, "borders", held.reference, offset=held.known)
            key = f"chunk/borders={chunk}/{name}"
            plays += [held.alone, bench.scenario(key, [held.arrival], [watch], max_step_tokens=chunk)]
        return plays

    def _chunks(self, bench: Bench, probe: Probe) -> list[tuple[str, int]]:
        length = len(probe.token_ids)
        sizes = {
            "one_over": chunk_with_rest(length, 1),
            "small": SMALL,
            "even": chunk_with_rest(length, 0),
            "one_under": chunk_with_rest(length, -1),
            "budget": bench.chunk_budget,
        }
        return [(level, chunk) for level, chunk in sizes.items() if chunk is not None and chunk < length]

    def exercised(self, watch: Watch, trial: Played, reference: Played) -> Counters:
        """Prefill pieces beyond those of the reference."""
        pieces, whole = (
            sum(seat.group.kind == "prefill" for seat in seats(play.result.trace, request_id))
            for play, request_id in ((trial, watch.request_id), (reference, watch.reference.request_id))
        )
        return {"splits": pieces - whole} if pieces > whole else {}
