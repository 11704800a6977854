"""prefix_cache: computed against found. Each request is alone while it runs.

"warm": the probe again after the head of itself; its prompt's head comes from the cache. "follow_up": the probe plus
the head of its own reply as the prompt, as the next turn of a conversation sends it; the cache holds rows that were
decoded, which a cold run prefills. The cold first pass of each play is watched too (level "cold"): it hits nothing,
so it counts for no axis, but if it moved, the warm one would have nothing to stand on.
"""

from __future__ import annotations

from detharness.probes.axes.axis import Axis, AxisDepth, Counters
from detharness.probes.bench import Bench
from detharness.probes.scenario import Played, Probe, Reference, Scenario, Watch, solo_reference
from detharness.targets.protocol import PrefixCaching


class PrefixCache(Axis):
    """Whether KV is computed or found."""

    name = "prefix_cache"
    levels = ("warm", "follow_up")

    def scenarios(self, bench: Bench, depth: AxisDepth) -> list[Scenario]:
        """Cold, then warm, for each probe."""
        plays = []
        for probe in bench.longest(depth.probes):
            plays.append(bench.solo(probe))
            if depth.has("warm"):
                plays.append(self._warm(bench, probe, depth))
            if depth.has("follow_up"):
                plays += self._follow_up(bench, probe, depth)
        return plays

    def _warm(self, bench: Bench, probe: Probe, depth: AxisDepth) -> Scenario:
        # One token more than the prompt gives: what a kernel kept of the last row must not happen to be right.
        cold = bench.arrival(probe, 2, request_id=f"{probe.id}~cold")
        warm = bench.arrival(probe, depth.tokens, step=3)  # The cold one ends with step 1.
        solo = solo_reference(probe.id)
        watches = [
            Watch(probe.id, cold.request_id, self.name, "cold", solo),
            Watch(probe.id, warm.request_id, self.name, "warm", solo),
        ]
        return bench.scenario(f"prefix_cache/warm/{probe.id}", [cold, warm], watches, prefix_caching=PrefixCaching.ON)

    def _follow_up(self, bench: Bench, probe: Probe, depth: AxisDepth) -> list[Scenario]:
        """The cold follow-up is compared with the solo reply it continues; the warm one with the cold one."""
        reply = bench.replies.get(probe.id, ())
        tokens = min(bench.horizon(depth.tokens), len(reply))
        known = tokens // 2
        if known < bench.config.page_size:  # Less than a page of decoded rows: none of them could be found.
            return []
        prompt = probe.token_ids + reply[:known]
        cold = bench.arrival(probe, tokens - known, request_id=f"{probe.id}~next", prompt=prompt)
        cold_key = f"prefix_cache/cold_follow_up/{probe.id}"
        cold_watch = Watch(probe.id, cold.request_id, None, "follow_up", solo_reference(probe.id, known), offset=known)
        first = bench.arrival(probe, known + 2, request_id=f"{probe.id}~cold")  # One more, as above.
        # Each token takes one step, so the first turn is over before this one.
        warm = bench.arrival(probe, tokens - known, step=known + 3, request_id=cold.request_id, prompt=prompt)
        watches = [
            Watch(probe.id, first.request_id, self.name, "cold", solo_reference(probe.id)),
            Watch(
                probe.id,
                warm.request_id,
                self.name,
                "follow_up",
                Reference(cold_key, cold.request_id),
                offset=known,
            ),
        ]
        return [
            bench.scenario(cold_key, [cold], [cold_watch]),
            bench.scenario(
                f"prefix_cache/follow_up/{probe.id}", [first, warm], watches, prefix_caching=PrefixCaching.ON
            ),
        ]

    def exercised(self, watch: Watch, trial: Played, reference: Played) -> Counters:
        """Prompt tokens this request took from the cache."""
        hits = [
            tokens
            for step in trial.result.trace
            for request_id, _, tokens in step.cache_hits
            if request_id == watch.request_id
        ]
        return {"hits": len(hits), "hit_tokens": sum(hits)} if hits else {}
