"""A target that answers by script, and runs that ask it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from detharness.eval.generate.runner import Outcome, run
from detharness.eval.generate.settings import GenerateSettings, prepare
from detharness.eval.generate.store import Store
from detharness.eval.runs import Ledger, open_run
from detharness.targets.generation import GenerationRequest, Reply


class ScriptedTarget:
    """Answers with a function of the request; ``answer`` may raise, and may be replaced."""

    def __init__(self, context_length=None, *, images=True, name="scripted"):
        self.context_length = context_length
        self.accepts_images = images
        self.name = name
        self.requests: list[GenerationRequest] = []
        self.running = self.most_running = 0
        self.closed = False
        self.answer: Callable[[GenerationRequest], Reply] = self.plain

    def plain(self, request):
        return Reply(text=f"Answer: {request.seed}", finish_reason="stop", completion_tokens=3)

    def describe(self):
        return {"form": "scripted", "name": self.name}

    def count_prompt_tokens(self, messages):
        return sum(len(message["content"]) for message in messages)

    async def generate(self, request):
        self.requests.append(request)
        self.running += 1
        self.most_running = max(self.running, self.most_running)
        try:
            for _ in range(3):
                await asyncio.sleep(0)
            return self.answer(request)
        finally:
            self.running -= 1

    async def close(self):
        self.closed = True


class Asker:
    """Runs ``generate`` on arithmetic-mini in a temporary folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.reports = []

    def settings(self, **options):
        plain = {"task": "arithmetic-mini", "target": "scripted", "samples": 2, "retries": 2, "max_tokens": 8}
        return GenerateSettings(**{"out": self.folder / "run", **plain, **options})

    def plan(self, target, **options):
        return prepare(self.settings(**options), lambda: target)

    def ask(self, target=None, on_signal=lambda: None, **options) -> Outcome:
        plan = self.plan(target or ScriptedTarget(), **options)
        with Store(plan) as store:
            return run(plan, store, lambda progress: self.reports.append(replace(progress)), on_signal)

    def rows(self, name="run"):
        return [json.loads(line) for line in (self.folder / name / "generations.jsonl").read_bytes().splitlines()]

    def root(self, name="run"):
        ledger = Ledger(open_run(self.folder / name))
        for attempt in ledger.run.attempts([]):
            ledger.take(attempt)
        return ledger.root


@pytest.fixture
def asker(tmp_path, monkeypatch):
    """Waits between attempts take no time, and are kept in ``asker.waits``."""
    made = Asker(tmp_path)
    made.waits = []

    def quick(attempt, asked_for):
        made.waits.append((attempt, asked_for))
        return 0.0

    monkeypatch.setattr("detharness.eval.generate.runner._wait", quick)
    return made


@pytest.fixture
def target():
    return ScriptedTarget()
