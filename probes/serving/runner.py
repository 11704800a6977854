"""Runs a plan against a server: describe, try what it can do, play, look closer, report. Clocks: ``timing.json``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detharness.errors import UsageError
from detharness.probes.interrupts import Interrupts
from detharness.probes.serving.asking import Asker
from detharness.probes.serving.budget import Budget, Halted
from detharness.probes.serving.capabilities import Capabilities, PlainRequestError, find_capabilities
from detharness.probes.serving.journal import TRIALS, Journal
from detharness.probes.serving.locate import Locator, Tokenize
from detharness.probes.serving.report import build_report
from detharness.probes.serving.session import Session
from detharness.probes.serving.settings import MOST_LOCATED, ServerPlan
from detharness.records.jsonl import read_jsonl
from detharness.records.run_folder import RunFolder
from detharness.targets.serving import ServingTarget

ShowProgress = Callable[[int], AbstractContextManager[Callable[[str], None]]]
ShowCapabilities = Callable[[Sequence[Mapping[str, Any]]], None]


@dataclass(frozen=True)
class Outcome:
    """What a probe leaves: its folder, its report, and whether it was cut short by a person."""

    folder: Path
    report: dict[str, Any]
    interrupted: bool


@dataclass(frozen=True, kw_only=True)
class Display:
    """How a person follows a run."""

    progress: ShowProgress
    capabilities: ShowCapabilities
    on_interrupt: Callable[[], None]


def run(
    plan: ServerPlan,
    connect: Callable[[], ServingTarget],
    display: Display,
    *,
    tokenizer: Tokenize | None = None,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> Outcome:
    """Probe the server behind ``connect``, which is called inside the run's event loop, and write the run folder.

    UsageError where the server cannot be reached or answers not even a plain request; nothing is left behind then.
    After that, whatever goes wrong with it is an error row, and the run ends with a report. The first Ctrl-C stops
    sending, waits for what is in flight and reports; the second raises KeyboardInterrupt at once.
    """
    probe = _Run(plan, display, tokenizer)
    # Outside the runner: one that finds a handler of SIGINT sets none of its own, and so leaves none behind.
    with Interrupts(probe.interrupted) as interrupts, asyncio.Runner(loop_factory=loop_factory) as runner:
        folder, report = runner.run(probe.go(connect))
    return Outcome(folder, report, interrupts.asked)


class _Run:
    def __init__(self, plan: ServerPlan, display: Display, tokenizer: Tokenize | None) -> None:
        self._plan = plan
        self._display = display
        self._tokenizer = tokenizer
        self._budget: Budget | None = None

    def interrupted(self) -> None:
        """Of the first Ctrl-C: end the run in order; at once where nothing has begun."""
        if self._budget is None:
            raise KeyboardInterrupt
        self._budget.end_from_signal()
        self._display.on_interrupt()

    async def go(self, connect: Callable[[], ServingTarget]) -> tuple[Path, dict[str, Any]]:
        """The run's folder and its report."""
        target = connect()
        try:
            return await self._probe(target)
        finally:
            await target.close()

    async def _probe(self, target: ServingTarget) -> tuple[Path, dict[str, Any]]:
        plan = self._plan
        started = asyncio.get_running_loop().time()
        budget = Budget(plan.settings.max_requests, plan.settings.max_seconds)
        budget.take()
        manifest = plan.manifest(await target.describe())
        folder = RunFolder.open("probe", manifest, out=plan.settings.out)
        self._budget = budget
        with Journal(folder) as journal, self._display.progress(plan.most_requests) as advance:
            asker = Asker(target, budget, advance)
            try:
                session = await self._play(asker, budget, journal)
            except PlainRequestError as error:
                folder.discard()
                raise UsageError(
                    f"the server does not answer a plain request for the model {plan.settings.model!r}: {error}"
                ) from None
            journal.add(TRIALS, {"kind": "end", "ended": budget.ended, "sent": budget.sent})
        report = build_report(manifest, (row.value for row in read_jsonl(folder.path / f"{TRIALS}.jsonl")))
        folder.write_report(report)
        folder.write_timing(
            {
                "seconds": asyncio.get_running_loop().time() - started,
                "requests_sent": budget.sent,
                "waited_for_server": asker.waited_for_server,
                "most_in_flight": asker.most_in_flight,
                "reply_seconds": asker.durations.summary(),
                "send_lateness": None if session is None else session.lateness.summary(),
            }
        )
        return folder.path, report

    async def _play(self, asker: Asker, budget: Budget, journal: Journal) -> Session | None:
        """Everything that is sent; None where the run ended before the first play."""
        plan = self._plan
        session = None
        try:
            capabilities = await find_capabilities(asker, plan.api, plan.nonce)
            rows = [one.as_record() for one in capabilities.all]
            for row in rows:
                journal.add(TRIALS, {"kind": "capability", **row})
            self._display.capabilities(rows)
            session = Session(asker, budget, capabilities, plan.prompts, journal, plan.nonce)
            for play in plan.plays:
                await session.play(play)
            await self._look_closer(asker, capabilities, session, journal)
        except Halted:
            pass
        return session

    async def _look_closer(self, asker: Asker, capabilities: Capabilities, session: Session, journal: Journal) -> None:
        locator = Locator(asker, capabilities, self._tokenizer)
        prompts = {prompt.id: prompt for prompt in self._plan.prompts}
        for row in await locator.look(prompts, session.outputs, MOST_LOCATED):
            journal.add(TRIALS, row)
