"""Plays every arm and writes one record for each compared reply. Clocks go to ``timing.json`` only."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from detharness.probes.arm_plan import arm_scenarios, fitted, foreseen_cost, last_uses, looked_at, watched_twins
from detharness.probes.axes import AXES
from detharness.probes.axes.axis import Counters
from detharness.probes.bench import Bench
from detharness.probes.causes.explain import Axis, Divergence, explain, explain_units
from detharness.probes.causes.failure import Failure, Play, Side
from detharness.probes.contexts import parting
from detharness.probes.divergence import Comparison, Observation, compare, logprob_bits, margins
from detharness.probes.interrupts import Interrupts
from detharness.probes.journal import Advance, Journal, Outcome, ShowProgress, recorded_run
from detharness.probes.report import build_report
from detharness.probes.scenario import Played, Probe, Reference, Sample, Scenario, Watch, solo_key, solo_reference
from detharness.probes.settings import Arm, Plan
from detharness.targets.protocol import Completion, ScriptedTarget


def run(plan: Plan, progress: ShowProgress, on_interrupt: Callable[[], None]) -> Outcome:
    """Play every arm of ``plan`` and write its run folder; how it ends is said at ``recorded_run``."""
    benches = [_bench(plan, arm) for arm in plan.arms]

    def play(journal: Journal, interrupts: Interrupts, advance: Advance) -> None:
        found = {}
        for arm, bench in zip(plan.arms, benches, strict=True):
            target = plan.target.with_kernels(arm.kernels, arm.dtype)
            arm_run = _ArmRun(arm, target, plan, bench, journal, advance)
            found[arm.name] = arm_run.divergences
            arm_run.play(interrupts)
            if interrupts.asked:
                return
        explain(plan, found, journal, interrupts, advance)

    return recorded_run(
        plan.manifest,
        play,
        build_report,
        out=plan.settings.out,
        units=sum(map(partial(_cost, plan), plan.arms, benches)) + explain_units(plan),
        progress=progress,
        on_interrupt=on_interrupt,
    )


def _bench(plan: Plan, arm: Arm) -> Bench:
    bench = Bench(
        probes=plan.probes,
        vocab_size=plan.vocab_size,
        config=replace(plan.config, dtype=arm.dtype),
        seed=plan.settings.seed,
        capture_logits=plan.capture_logits,
        small_pool=plan.settings.num_blocks,
        chunk_budget=plan.settings.max_step_tokens,
        dispatch_borders=plan.dispatch_borders[arm.kernels],
        host_threads=len(os.sched_getaffinity(0)),
    )
    return fitted(bench, plan.depths[arm.name])


def _cost(plan: Plan, arm: Arm, bench: Bench) -> int:
    return foreseen_cost(bench, plan.depths[arm.name], plan.settings.trials, plan.generator, plan.script)


class _ArmRun:
    """One arm in progress: plays scenarios, keeps the replies that others are compared with.

    ``divergences``: the first trial of each axis in which a reply moved.
    """

    def __init__(
        self,
        arm: Arm,
        target: ScriptedTarget,
        plan: Plan,
        bench: Bench,
        journal: Journal,
        advance: Advance,
    ) -> None:
        self._arm = arm
        self._target = target
        self._plan = plan
        self._bench = bench
        self._journal = journal
        self._advance = advance
        self._greedy = {probe.id: probe.greedy for probe in (*bench.probes, *bench.twins)}
        self.divergences: dict[Axis, Divergence] = {}
        self._seen: dict[tuple[str, str, int], Observation] = {}
        self._played: dict[str, Played] = {}

    def play(self, interrupts: Interrupts) -> None:
        """Solo replies first, then everything that is compared with them; a last row says the arm is complete."""
        for probe in self._bench.probes:
            if interrupts.asked:
                return
            self._play_solo(probe)
        bench = replace(
            self._bench,
            replies={probe.id: self._solo(probe.id).token_ids for probe in self._bench.probes},
            baseline_threads=self._played[solo_key(self._bench.probes[0].id)].result.trace[0].threads,
        )
        plan = self._plan
        scenarios = arm_scenarios(bench, plan.depths[self._arm.name], plan.settings.trials, plan.generator, plan.script)
        for twin in watched_twins(bench, scenarios):
            if interrupts.asked:
                return
            self._play_solo(twin)
        looked, last_use = looked_at(scenarios), last_uses(scenarios)
        for index, scenario in enumerate(scenarios):
            if interrupts.asked:
                return
            self._play_watched(scenario, looked[scenario.key])
            # Logits rows are large: what nothing more is compared with is forgotten. Solo replies stay.
            self._drop([held.key for held in scenarios[: index + 1] if last_use[held.key] == index])
        self._journal.add({"kind": "arm_complete", "arm": self._arm.name})

    def _play_solo(self, probe: Probe) -> None:
        played = self._run(self._bench.solo(probe))
        self._observe(played, {(probe.id, 0): probe.id})
        completion = played.result.completions[probe.id, 0]
        observation = self._solo(probe.id)
        self._journal.add(
            {
                "kind": "solo",
                "arm": self._arm.name,
                "backend": self._target.backend,
                "certificate": self._target.certificate,
                "scenario": played.scenario.key,
                "prompt": probe.id,
                **_reply_fields(completion, observation, completion.text),
            }
        )

    def _play_watched(self, scenario: Scenario, looked_at: Mapping[Sample, str]) -> None:
        played = self._run(scenario)
        self._observe(played, looked_at)
        for watch in scenario.watches:
            self._journal.add(self._trial(watch, played))

    def _solo(self, probe_id: str) -> Observation:
        return self._seen[solo_key(probe_id), probe_id, 0]

    def _reference(self, reference: Reference) -> Observation:
        held = self._seen[reference.scenario, reference.request_id, reference.sample]
        return held.from_token(reference.offset)

    def _drop(self, keys: Sequence[str]) -> None:
        for key in keys:
            del self._played[key]
        for name in [name for name in self._seen if name[0] in keys]:
            del self._seen[name]

    def _run(self, scenario: Scenario) -> Played:
        started = time.perf_counter()
        result = self._target.play(scenario.arrivals, scenario.config)
        self._journal.timing.append(
            {
                "arm": self._arm.name,
                "scenario": scenario.key,
                "steps": len(result.trace),
                "seconds": time.perf_counter() - started,
            }
        )
        for _ in range(scenario.cost):
            self._advance(f"{self._arm.name} {scenario.key}")
        played = Played(scenario, result)
        self._played[scenario.key] = played
        return played

    def _observe(self, played: Played, probe_of: Mapping[Sample, str]) -> None:
        for (request_id, sample), probe_id in probe_of.items():
            completion = played.result.completions[request_id, sample]
            observation = Observation.of(completion, greedy=self._greedy[probe_id])
            self._seen[played.scenario.key, request_id, sample] = observation

    def _trial(self, watch: Watch, played: Played) -> dict[str, Any]:
        mine = self._seen[played.scenario.key, watch.request_id, watch.sample]
        reference = watch.reference
        comparison = compare(self._reference(reference), mine, self._arm.dtype)
        with_solo = comparison
        if not watch.repeats_solo:
            nothing = mine.from_token(len(mine.token_ids))
            with_solo = compare(nothing, nothing, self._arm.dtype)
        elif reference.scenario != solo_key(watch.probe_id):
            with_solo = compare(self._solo(watch.probe_id).from_token(watch.offset), mine, self._arm.dtype)
        counters = self._counters(watch, played, comparison)
        confounded = watch.premise is not None and self._premise_fails(watch, watch.premise)
        if comparison.moved and counters and not confounded and watch.axis not in self.divergences:
            self.divergences[watch.axis] = self._divergence(watch, played.scenario)
        completion = played.result.completions[watch.request_id, watch.sample]
        text = self._text(watch.probe_id, completion, watch.offset)
        context = None
        if comparison.first_token is not None:
            begins_at = watch.offset - reference.offset
            other = self._played[reference.scenario].result.completions[reference.request_id, reference.sample]
            context = parting(self._text(watch.probe_id, other, begins_at), text)
        return {
            "kind": "trial",
            "arm": self._arm.name,
            "scenario": played.scenario.key,
            "request": watch.request_id,
            "prompt": watch.probe_id,
            "axis": watch.axis,
            "level": watch.level,
            "factors": None if played.scenario.factors is None else dict(played.scenario.factors),
            "reference": [reference.scenario, reference.request_id, reference.offset],
            "samples": [watch.sample, reference.sample],
            "offset": watch.offset,
            "exercised": counters,
            "confounded": confounded,
            "comparison": comparison.as_record(),
            "with_solo": with_solo.as_record(),
            "context": context,
            "config": played.scenario.config.as_record(),
            **_reply_fields(completion, mine, text),
        }

    def _divergence(self, watch: Watch, scenario: Scenario) -> Divergence:
        def side(held: Reference) -> Side:
            return Side(Play.of(self._played[held.scenario].scenario), (held.request_id, held.sample))

        alike = None if watch.premise is None else (side(solo_reference(watch.probe_id)), side(watch.premise))
        trial = Side(Play.of(scenario), (watch.request_id, watch.sample))
        failure = Failure(trial, side(watch.reference), alike)
        return Divergence(watch.probe_id, watch.axis, watch.level, scenario.key, failure)

    def _text(self, probe_id: str, completion: Completion, begins_at: int) -> str:
        """A reply's text from the first token of the solo reply on; the prompt may hold ``begins_at`` tokens of it."""
        if not begins_at:
            return completion.text
        head = self._solo(probe_id).token_ids[:begins_at]
        return self._target.detokenize(head + completion.token_ids)

    def _premise_fails(self, watch: Watch, premise: Reference) -> bool:
        alone = self._solo(watch.probe_id).from_token(watch.offset)
        return compare(alone, self._reference(premise), self._arm.dtype).moved

    def _counters(self, watch: Watch, played: Played, comparison: Comparison) -> Counters:
        """The axis's own counters, or for traffic what happened in it; {} when nothing was compared."""
        if comparison.tokens == 0:
            return {}
        if watch.axis is not None:
            return AXES[watch.axis].exercised(watch, played, self._played[watch.reference.scenario])
        trace = played.result.trace
        return {
            "largest_batches": [max((len(step.groups) for step in trace), default=0)],
            "preemptions": sum(len(step.preempted) for step in trace),
            "cache_hits": sum(len(step.cache_hits) for step in trace),
        }


def _reply_fields(completion: Completion, observation: Observation, text: str) -> dict[str, Any]:
    return {
        "token_ids": list(completion.token_ids),
        "logprob_bits": logprob_bits(observation),
        "margins": margins(observation),
        "text": text,
        "finish_reason": completion.finish_reason,
        "cached_tokens": completion.cached_tokens,
        "preemptions": completion.preemptions,
    }
