"""Trials in which many things differ at once, compared with the probe alone: everyday traffic, and covering rows.

They blame no axis; they find what only two things together break.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from detharness.probes.bench import Bench
from detharness.probes.covering import Row, covering_rows
from detharness.probes.scenario import Scenario, Watch, solo_reference
from detharness.probes.traffic.generators import GENERATORS, Traffic, small_pool
from detharness.targets.protocol import Arrival, FreePages, MemoryPolicy, PagePlacement, PrefixCaching

COMBINED = "combined"

FACTORS: dict[str, Sequence[Any]] = {  # First levels make the first row, which the default plays.
    "traffic": ("ragged", "burst", "mixed-samplers", "cancel", "shared-prefix", "mixed-seeds"),
    "pool": ("small", "roomy", "reserve"),
    "prefix_caching": ("on", "off"),
    "chunk": (None, 15, 17, 63, 65),  # Around a page and the KV grid.
    "page_size": (None, 5, 63, 65),
    "page_placement": ("permuted", "ascending"),
    "free_pages": ("nan", "keep"),
    "threads": (None, 1),
    "load_seeds": ("own", "none", "shared"),
    "load_samples": (1, 2),
    "load_ends": ("by itself", "cancelled"),
    "late_probes": (0, 1),
}


def rows(count: int | None) -> list[Row]:
    """The first ``count`` rows of the covering array over ``FACTORS`` (None: all of them)."""
    return covering_rows(FACTORS)[:count]


def combined_scenario(bench: Bench, row: Row, index: int, tokens: int | None) -> Scenario:
    """One covering row as a play of every probe."""
    drawn = GENERATORS[str(row["traffic"])](bench, bench.horizon(tokens))
    traffic = replace(drawn, arrivals=_varied(bench, row, drawn))
    page_size = row["page_size"] or bench.config.page_size
    assert isinstance(page_size, int)
    changes: dict[str, Any] = {
        "page_size": page_size,
        "prefix_caching": PrefixCaching(row["prefix_caching"]),
        "page_placement": PagePlacement(row["page_placement"]),
        "placement_seed": bench.seed + index,
        "free_pages": FreePages(row["free_pages"]),
    }
    if row["chunk"] is not None:
        changes["max_step_tokens"] = row["chunk"]
    if row["threads"] is not None:
        changes["threads"] = row["threads"]
    if row["pool"] != "roomy":
        changes["num_blocks"] = small_pool(bench, traffic.arrivals, page_size)
        changes["memory_policy"] = MemoryPolicy.RESERVE if row["pool"] == "reserve" else MemoryPolicy.RECOMPUTE
    scenario = traffic_scenario(bench, f"{COMBINED}/{index}/round={bench.round}", COMBINED, traffic, changes)
    return replace(scenario, factors=row)


def _varied(bench: Bench, row: Row, traffic: Traffic) -> list[Arrival]:
    """The traffic with its load and the probes' arrival as the row has them."""
    arrivals = []
    for arrival in traffic.arrivals:
        if arrival.request_id in traffic.watched:
            arrivals.append(replace(arrival, step=arrival.step + int(str(row["late_probes"]))))
            continue
        sampling = replace(arrival.sampling, n=int(str(row["load_samples"])))
        if row["load_seeds"] == "shared":
            sampling = replace(sampling, seq_seed=bench.probes[0].sampling.seq_seed)
        if row["load_seeds"] == "none":
            # Masked to one token: what the engine draws for a seed must not make another run another run.
            sampling = replace(sampling, seq_seed=None, top_k=1)
        cancel = arrival.cancel_step
        if row["load_ends"] == "cancelled" and cancel is None:
            cancel = arrival.step + max(1, sampling.max_tokens // 2)
        arrivals.append(replace(arrival, sampling=sampling, cancel_step=cancel))
    return sorted(arrivals, key=lambda arrival: arrival.step)


def named_scenario(bench: Bench, name: str, tokens: int | None) -> Scenario:
    """One generator's traffic as a play."""
    traffic = GENERATORS[name](bench, bench.horizon(tokens))
    changes = {**asked_limits(bench, traffic), **traffic.changes}
    return traffic_scenario(bench, f"traffic/{name}/round={bench.round}", name, traffic, changes)


def asked_limits(bench: Bench, traffic: Traffic) -> dict[str, Any]:
    """The pool and the step budget the user set, for traffic the user named; what was not set has room."""
    limits: dict[str, Any] = {}
    if bench.small_pool is not None:
        limits["num_blocks"] = small_pool(bench, traffic.arrivals, bench.config.page_size)
    if bench.chunk_budget is not None:
        limits["max_step_tokens"] = bench.chunk_budget
    return limits


def traffic_scenario(bench: Bench, key: str, level: str, traffic: Traffic, changes: dict[str, Any]) -> Scenario:
    """Traffic as a scenario whose watched requests are compared with their solo replies."""
    watches = [
        Watch(probe_id, request_id, None, level, solo_reference(probe_id))
        for request_id, probe_id in traffic.watched.items()
    ]
    return bench.scenario(key, traffic.arrivals, watches, **changes)
