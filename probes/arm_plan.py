"""Everything one arm plays, in order: references before the plays that are compared with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from detharness.probes.axes import AXES
from detharness.probes.bench import Bench
from detharness.probes.combined import asked_limits, combined_scenario, named_scenario, rows, traffic_scenario
from detharness.probes.depth import ArmDepth
from detharness.probes.scenario import Scenario, merge, solo_key
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
    return replace(bench, probes=probes, filler_count=depth.filler_count, together_tokens=depth.together_tokens)


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
    solo = {solo_key(probe.id) for probe in bench.probes}
    return [scenario for scenario in merge(plays) if scenario.key not in solo]


def foreseen_cost(
    bench: Bench, depths: Sequence[ArmDepth], trials: int, generator: str | None, script: Script | None
) -> int:
    """Units of work of all arms, before any reply is known: replies are taken at full length."""
    return sum(_cost(fitted(bench, depth), depth, trials, generator, script) for depth in depths)


def _cost(bench: Bench, depth: ArmDepth, trials: int, generator: str | None, script: Script | None) -> int:
    replies = {probe.id: (0,) * probe.sampling.max_tokens for probe in bench.probes}
    guess = replace(bench, replies=replies, baseline_threads=bench.host_threads)
    solo = sum(bench.solo(probe).cost for probe in bench.probes)
    return solo + sum(scenario.cost for scenario in arm_scenarios(guess, depth, trials, generator, script))
