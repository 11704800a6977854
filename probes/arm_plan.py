"""Everything one arm plays, in order: references before the plays that are compared with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from detharness.probes.axes import AXES
from detharness.probes.bench import Bench
from detharness.probes.combined import asked_limits, combined_scenario, named_scenario, rows, traffic_scenario
from detharness.probes.depth import ArmDepth
from detharness.probes.scenario import Probe, Sample, Scenario, merge, solo_key
from detharness.probes.traffic.script import Script


def fitted(bench: Bench, depth: ArmDepth) -> Bench:
    """The bench with its replies and neighbours cut to the arm's depth."""
    probes = bench.probes
    if depth.tokens is not None:
        limits = [min(probe.sampling.max_tokens, depth.tokens) for probe in probes]
        probes = tuple(
            replace(probe, sampling=replace(probe.sampling, max_tokens=limit))
            for probe, limit in zip(probes, limits, strict=True)
        )
    sampled = [axis_depth.tokens for name, axis_depth in depth.axes.items() if AXES[name].watches_twins]
    longest = max((tokens for tokens in sampled if tokens is not None), default=None)
    return replace(
        bench,
        probes=probes,
        filler_count=depth.filler_count,
        together_tokens=depth.together_tokens,
        twin_tokens=None if None in sampled else longest,
    )


def arm_scenarios(
    bench: Bench, depth: ArmDepth, trials: int, generator: str | None, script: Script | None
) -> list[Scenario]:
    """Scenarios after the solo replies. A play without anything random in it is the same in every round: one play."""
    plays: list[Scenario] = []
    for number in range(trials):
        this = replace(bench, round=number)
        for name, axis_depth in depth.axes.items():
            plays += AXES[name].scenarios(this, axis_depth)
        for index, row in enumerate(rows(depth.combined)):
            plays.append(combined_scenario(this, row, index, depth.combined_tokens))
        if generator is not None:
            plays.append(named_scenario(this, generator, None))
    if script is not None:
        traffic = script.traffic(bench)
        plays.append(traffic_scenario(bench, "traffic/script", "script", traffic, asked_limits(bench, traffic)))
    solo = {solo_key(probe.id) for probe in (*bench.probes, *bench.twins)}
    return [scenario for scenario in merge(plays) if scenario.key not in solo]


def watched_twins(bench: Bench, scenarios: Sequence[Scenario]) -> list[Probe]:
    """The sampled twins that some watch speaks of: their solo replies are needed too."""
    watched = {watch.probe_id for scenario in scenarios for watch in scenario.watches}
    return [twin for twin in bench.twins if twin.id in watched]


def looked_at(scenarios: Sequence[Scenario]) -> Mapping[str, Mapping[Sample, str]]:
    """By scenario: every sample that is compared or compared with, and the probe it repeats."""
    found: dict[str, dict[Sample, str]] = {scenario.key: {} for scenario in scenarios}
    for scenario in scenarios:
        for watch in scenario.watches:
            found[scenario.key][watch.request_id, watch.sample] = watch.probe_id
            for held in (watch.reference, watch.premise):
                if held is not None and held.scenario in found:
                    found[held.scenario][held.request_id, held.sample] = watch.probe_id
    return found


def last_uses(scenarios: Sequence[Scenario]) -> Mapping[str, int]:
    """By scenario: the index of the last one that is compared with it, its own if none is."""
    last = {scenario.key: index for index, scenario in enumerate(scenarios)}
    for index, scenario in enumerate(scenarios):
        for watch in scenario.watches:
            for held in (watch.reference, watch.premise):
                if held is not None and held.scenario in last:
                    last[held.scenario] = max(index, last[held.scenario])
    return last


def foreseen_cost(bench: Bench, depth: ArmDepth, trials: int, generator: str | None, script: Script | None) -> int:
    """Units of work of an arm, before any reply is known: replies are taken at full length."""
    replies = {probe.id: (0,) * probe.sampling.max_tokens for probe in bench.probes}
    guess = replace(bench, replies=replies, baseline_threads=bench.host_threads)
    plays = arm_scenarios(guess, depth, trials, generator, script)
    alone = [*bench.probes, *watched_twins(bench, plays)]
    return sum(bench.solo(probe).cost for probe in alone) + sum(scenario.cost for scenario in plays)
