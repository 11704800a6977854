"""Traffic by name: each generator turns the workbench into arrivals. Deterministic by seed, round and name.

A request called after a probe (``ID`` or ``ID~...``) and not cancelled is watched; everything else is load.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from detharness.errors import UsageError
from detharness.probes.bench import Bench, budget_tokens, pages
from detharness.probes.traffic.fillers import SHORTEST
from detharness.targets.protocol import Arrival, MemoryPolicy, PrefixCaching


@dataclass(frozen=True)
class Traffic:
    """Arrivals, which of them are watched (request id -> probe id), and configuration the traffic needs."""

    arrivals: list[Arrival]
    watched: dict[str, str]
    changes: dict[str, Any] = field(default_factory=dict)


TINY_PAGE = 4

Generator = Callable[[Bench, int], Traffic]


def _watch_probes(bench: Bench) -> dict[str, str]:
    return {probe.id: probe.id for probe in bench.probes}


def solo(bench: Bench, tokens: int) -> Traffic:
    """Each probe alone, one after the other, on one engine."""
    arrivals, step = [], 0
    for probe in bench.probes:
        arrivals.append(bench.arrival(probe, tokens, step=step))
        step += tokens + 1  # One step of prefill and sampling, then one per token.
    return Traffic(arrivals, _watch_probes(bench))


def repeat(bench: Bench, tokens: int) -> Traffic:
    """Three copies of every probe at once."""
    copies = [(probe, f"{probe.id}~{index}") for probe in bench.probes for index in range(3)]
    return Traffic(
        [bench.arrival(probe, tokens, request_id=name) for probe, name in copies],
        {name: probe.id for probe, name in copies},
    )


def burst(bench: Bench, tokens: int) -> Traffic:
    """Every probe and the fillers in one step, in random order."""
    fillers = bench.fillers("burst")
    load = fillers.arrivals(fillers.lengths(bench.filler_count), tokens)
    arrivals = bench.all_probes(tokens) + load
    fillers.random.shuffle(arrivals)
    return Traffic(arrivals, _watch_probes(bench))


def needle(bench: Bench, tokens: int) -> Traffic:
    """Each probe among random fillers, at every slot in turn; the waves do not overlap."""
    fillers = bench.fillers("needle")
    arrivals, watched, step, wave = [], {}, 0, 0
    for probe in bench.probes:
        for slot in range(bench.filler_count + 1):
            load = fillers.arrivals(fillers.lengths(bench.filler_count), tokens, step)
            group = [replace(arrival, request_id=f"{arrival.request_id}/{wave}") for arrival in load]
            name = f"{probe.id}~slot{slot}"
            group.insert(slot, bench.arrival(probe, tokens, step=step, request_id=name))
            watched[name] = probe.id
            arrivals += group
            step, wave = step + tokens + 1, wave + 1
    return Traffic(arrivals, watched)


def ragged(bench: Bench, tokens: int) -> Traffic:
    """Probes and fillers at random steps; filler prompts and replies of every length, one longer than all probes."""
    fillers = bench.fillers("ragged")
    draw = fillers.random
    lengths = [bench.longer_than_all(), *fillers.lengths(bench.filler_count - 1)]
    arrivals = [
        replace(load, step=draw.randrange(tokens), sampling=fillers.greedy(draw.randint(1, tokens)))
        for load in fillers.arrivals(lengths, tokens)
    ]
    arrivals += [bench.arrival(probe, tokens, step=draw.randrange(tokens)) for probe in bench.probes]
    return Traffic(sorted(arrivals, key=lambda arrival: arrival.step), _watch_probes(bench))


def borders(bench: Bench, tokens: int) -> Traffic:
    """Fillers one token short of, at, and one over a page and a chunk, under a budget that cuts the probes too."""
    fillers = bench.fillers("borders")
    page = bench.config.page_size
    chunk = bench.chunk_budget or 2 * page
    lengths = [max(1, border + offset) for border in (page, chunk) for offset in (-1, 0, 1)]
    arrivals = fillers.arrivals(lengths, tokens)
    for index, probe in enumerate(bench.probes):
        arrivals.insert(2 * index, bench.arrival(probe, tokens))
    return Traffic(arrivals, _watch_probes(bench), {"max_step_tokens": chunk})


def shared_prefix(bench: Bench, tokens: int) -> Traffic:
    """Per probe: two cold copies in one step, a stranger with the head of its prompt, then a warm copy."""
    fillers = bench.fillers("shared-prefix")
    arrivals, watched = [], {}
    for probe in bench.probes:
        head = probe.token_ids[: -(-len(probe.token_ids) // 2)]
        for name, step in (("~cold", 0), ("~twin", 0), ("~warm", tokens + 1)):
            arrivals.append(bench.arrival(probe, tokens, step=step, request_id=probe.id + name))
            watched[probe.id + name] = probe.id
        arrivals.append(Arrival(tokens // 2, f"{probe.id}~~head", head + fillers.tokens(5), fillers.greedy(tokens)))
    ordered = sorted(arrivals, key=lambda arrival: arrival.step)
    return Traffic(ordered, watched, {"prefix_caching": PrefixCaching.ON})


def tiny_pool(bench: Bench, tokens: int) -> Traffic:
    """Probes after fillers that end one by one, in a pool too small for all.

    The newest request is the one that loses its blocks; each filler that ends lets a probe back in, and the growth
    of the others drives it out again: several preemptions per request.
    """
    fillers = bench.fillers("tiny-pool")
    count = 2 * bench.filler_count
    load = [
        replace(arrival, sampling=fillers.greedy(max(2, tokens * (index + 1) // count)))
        for index, arrival in enumerate(fillers.arrivals([SHORTEST] * count, tokens))
    ]
    arrivals = load + bench.all_probes(tokens)
    needs = [pages(budget_tokens(arrival), TINY_PAGE) for arrival in arrivals]
    changes = {
        "page_size": TINY_PAGE,  # Small pages run out often.
        "num_blocks": small_pool(bench, arrivals, TINY_PAGE)
        if bench.small_pool
        else max(max(needs) + 1, sum(needs) // 3),
        "memory_policy": MemoryPolicy.RECOMPUTE,
    }
    return Traffic(arrivals, _watch_probes(bench), changes)


def cancel(bench: Bench, tokens: int) -> Traffic:
    """A burst whose fillers are cancelled at random steps while new ones arrive."""
    fillers = bench.fillers("cancel")
    draw = fillers.random
    arrivals = bench.all_probes(tokens)
    for load in fillers.arrivals(fillers.lengths(2 * bench.filler_count), tokens):
        step = draw.randrange(max(1, tokens // 2))
        arrivals.append(replace(load, step=step, cancel_step=step + draw.randint(1, max(1, tokens // 2))))
    return Traffic(sorted(arrivals, key=lambda arrival: arrival.step), _watch_probes(bench))


def mixed_samplers(bench: Bench, tokens: int) -> Traffic:
    """A burst whose fillers are greedy and sampled by turns, with every kind of mask."""
    fillers = bench.fillers("mixed-samplers")
    load = fillers.arrivals(fillers.lengths(bench.filler_count), tokens)
    mixed = [
        replace(arrival, sampling=fillers.sampled(tokens)) if index % 2 == 0 else arrival
        for index, arrival in enumerate(load)
    ]
    arrivals = bench.all_probes(tokens) + mixed
    fillers.random.shuffle(arrivals)
    return Traffic(arrivals, _watch_probes(bench))


def mixed_seeds(bench: Bench, tokens: int) -> Traffic:
    """Every probe beside two copies of its own prompt that sample with other seeds."""
    fillers = bench.fillers("mixed-seeds")
    arrivals = []
    for probe in bench.probes:
        arrivals.append(bench.arrival(probe, tokens))
        for index in range(2):
            arrivals.append(Arrival(0, f"{probe.id}~~seed{index}", probe.token_ids, fillers.sampled(tokens)))
    fillers.random.shuffle(arrivals)
    return Traffic(arrivals, _watch_probes(bench))


GENERATORS: dict[str, Generator] = {
    "solo": solo,
    "repeat": repeat,
    "burst": burst,
    "needle": needle,
    "ragged": ragged,
    "borders": borders,
    "shared-prefix": shared_prefix,
    "tiny-pool": tiny_pool,
    "cancel": cancel,
    "mixed-samplers": mixed_samplers,
    "mixed-seeds": mixed_seeds,
}


def generator(name: str) -> Generator:
    """The generator called ``name``; UsageError lists them all."""
    if name not in GENERATORS:
        raise UsageError(
            f"unknown traffic {name!r} in --traffic: use a script file that exists, or one of {', '.join(GENERATORS)}"
        )
    return GENERATORS[name]


def small_pool(bench: Bench, arrivals: list[Arrival], page_size: int) -> int:
    """Pages that hold the largest request and about half of all traffic, or what the user set."""
    needs = [pages(budget_tokens(arrival), page_size) for arrival in arrivals]
    if bench.small_pool is not None:
        return max(bench.small_pool * bench.config.page_size // page_size, *needs)
    return max(max(needs) + 1, sum(needs) // 2)
