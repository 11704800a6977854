"""Plays every arm and writes one record for each compared reply. Clocks go to ``timing.json`` only."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from detharness.probes.contexts import parting
from detharness.probes.divergence import Observation, compare, logprob_bits, margins
from detharness.probes.interrupts import Interrupts
from detharness.probes.journal import Advance, Journal, Outcome, ShowProgress, recorded_run
from detharness.probes.paths.arm_plan import arm_plays
from detharness.probes.paths.axes import PATH_AXES
from detharness.probes.paths.bench import Play
from detharness.probes.paths.report import build_report
from detharness.probes.paths.settings import PathPlan
from detharness.probes.scenario import Watch, solo_key
from detharness.targets.paths import PathError, PathReply, PathRun, PathTarget


def run(plan: PathPlan, progress: ShowProgress, on_interrupt: Callable[[], None]) -> Outcome:
    """Play every arm of ``plan`` and write its run folder; how it ends is said at ``recorded_run``."""
    plays = arm_plays(plan.bench, plan.axes, plan.settings.trials)

    def play(journal: Journal, interrupts: Interrupts, advance: Advance) -> None:
        for arm in plan.manifest["arms"]:
            target = plan.target.with_dtype(arm["dtype"])
            _ArmRun(arm, target, plan, journal, advance).play(plays, interrupts)
            if interrupts.asked:
                return

    return recorded_run(
        plan.manifest,
        play,
        build_report,
        out=plan.settings.out,
        units=len(plan.dtypes) * sum(play.cost for play in plays),
        progress=progress,
        on_interrupt=on_interrupt,
    )


class _ArmRun:
    """One arm in progress: plays paths, keeps the replies that others are compared with."""

    def __init__(
        self, arm: Mapping[str, Any], target: PathTarget, plan: PathPlan, journal: Journal, advance: Advance
    ) -> None:
        self._arm = arm
        self._target = target
        self._plan = plan
        self._journal = journal
        self._advance = advance
        self._lengths = {probe.id: len(probe.token_ids) for probe in plan.bench.probes}
        self._seen: dict[tuple[str, str], Observation] = {}
        self._texts: dict[tuple[str, str], str] = {}
        self._closed: set[str] = set()

    def play(self, plays: list[Play], interrupts: Interrupts) -> None:
        """Everything in order; a last row says the arm is complete. A path that cannot run is given up, with a row."""
        kept = {play.key for play in plays if not play.watches}
        kept |= {watch.reference.scenario for play in plays for watch in play.watches}
        for play in plays:
            if interrupts.asked:
                return
            if play.path not in self._closed:
                try:
                    self._play(play)
                except PathError as error:
                    self._close(play, error)
            for _ in range(play.cost):
                self._advance(f"{self._arm['name']} {play.key}")
            if play.key not in kept:  # Logits rows are large.
                for name in [name for name in self._seen if name[0] == play.key]:
                    del self._seen[name], self._texts[name]
        self._journal.add({"kind": "arm_complete", "arm": self._arm["name"]})

    def _close(self, play: Play, error: PathError) -> None:
        if not play.watches:
            raise error  # Without the plain replies there is nothing to compare with.
        self._closed.add(play.path)
        axis = play.watches[0].axis
        self._journal.add({"kind": "unavailable", "arm": self._arm["name"], "axis": axis, "reason": str(error)})

    def _play(self, play: Play) -> None:
        started = time.perf_counter()
        if play.path == "generate":
            made = self._target.generate(play.requests, play.pad_to)
        else:
            made = self._target.continuous_batching(play.requests)
        self._journal.timing.append(
            {
                "arm": self._arm["name"],
                "scenario": play.key,
                "steps": len(made.forwards),
                "seconds": time.perf_counter() - started,
            }
        )
        for name, reply in made.replies.items():
            self._seen[play.key, name] = self._observation(name, reply)
            self._texts[play.key, name] = reply.text
        for watch in play.watches:
            self._journal.add(self._trial(play, watch, made))
        if not play.watches:
            self._journal.add(self._solo(play, made))

    def _observation(self, probe_id: str, reply: PathReply) -> Observation:
        return Observation(
            token_ids=reply.token_ids,
            prompt_length=self._lengths[probe_id],
            logprobs=reply.logprobs,
            gaps=reply.gaps,
            logits=reply.logits if self._plan.capture_logits else None,
            stopped=reply.stopped,
            greedy=True,
        )

    def _solo(self, play: Play, made: PathRun) -> dict[str, Any]:
        (name,) = made.replies
        return {
            "kind": "solo",
            "arm": self._arm["name"],
            "backend": self._target.backend,
            "certificate": None,
            "scenario": play.key,
            "prompt": name,
            **self._reply_fields(play.key, name),
        }

    def _trial(self, play: Play, watch: Watch, made: PathRun) -> dict[str, Any]:
        mine = self._seen[play.key, watch.request_id]
        reference = (watch.reference.scenario, watch.reference.request_id)
        solo = (solo_key(watch.probe_id), watch.probe_id)
        comparison = compare(self._seen[reference], mine, self._arm["dtype"])
        with_solo = comparison if reference == solo else compare(self._seen[solo], mine, self._arm["dtype"])
        assert watch.axis is not None
        context = None
        if comparison.first_token is not None:
            context = parting(self._texts[reference], self._texts[play.key, watch.request_id])
        return {
            "kind": "trial",
            "arm": self._arm["name"],
            "scenario": play.key,
            "request": watch.request_id,
            "prompt": watch.probe_id,
            "axis": watch.axis,
            "level": watch.level,
            "reference": [*reference, 0],
            "offset": 0,
            "exercised": PATH_AXES[watch.axis].exercised(watch, made),
            "confounded": False,
            "comparison": comparison.as_record(),
            "with_solo": with_solo.as_record(),
            "context": context,
            "config": {
                "path": play.path,
                "pad_to": play.pad_to,
                "requests": len(play.requests),
                "threads": sorted({forward.threads for forward in made.forwards}),
            },
            **self._reply_fields(play.key, watch.request_id),
        }

    def _reply_fields(self, key: str, name: str) -> dict[str, Any]:
        observation = self._seen[key, name]
        return {
            "token_ids": list(observation.token_ids),
            "logprob_bits": logprob_bits(observation),
            "margins": margins(observation),
            "text": self._texts[key, name],
            "finish_reason": "stop" if observation.stopped else "length",
        }
