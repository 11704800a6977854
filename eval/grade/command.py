"""Grading a run from its folder to the folder of its grade. The generations are only ever read."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from detharness.errors import UsageError
from detharness.eval.grade.folder import prepare_folder, write_grade
from detharness.eval.grade.grading import Grading, Progress, grade_records
from detharness.eval.grade.judge import Judge, Line
from detharness.eval.grade.judge_cache import JUDGE, load_cache
from detharness.eval.grade.page import GradePage
from detharness.eval.grade.report import build_report
from detharness.eval.grade.settings import JudgeChoice, Plan
from detharness.records.jsonl import JsonlWriter
from detharness.targets.generation import GenerationTarget

Connect = Callable[[str, str], GenerationTarget]
"""From a base URL and a model's name to the target behind them."""


@dataclass(frozen=True)
class Outcome:
    """A finished grade. ``digests``: of the generation files, the same before and after. calls: of the judge."""

    folder: Path
    report: dict[str, Any]
    grading: Grading
    digests: dict[str, str]
    calls: int

    @property
    def failures(self) -> list[tuple[str, str]]:
        """What the judge failed with, (kind, sentence), each once."""
        return sorted(set(self.grading.failures))

    @property
    def exit_code(self) -> int:
        """0 when every cell has a verdict that counts, else 1."""
        return 0 if self.report["coverage_complete"] else 1


def grade(plan: Plan, connect: Connect, started: Callable[[dict[str, str]], None], progress: Progress) -> Outcome:
    """Grade as planned and write the grade's folder.

    started: gets the digests of the generation files before the first record is read. UsageError if they are others at
    the end: then nothing is written but new replies of the judge.
    """
    begun = time.monotonic()
    run = plan.run
    before = run.file_digests()
    if not before:
        raise UsageError(f"{run.folder} holds no generations.jsonl: run eval generate first")
    started(before)
    prepare_folder(plan.out)
    with ExitStack() as stack:
        judge = None if plan.judge is None else _judge(plan.judge, plan.out, connect, stack)
        grading = grade_records(run, plan.rules, judge, progress)
    report = build_report(grading, plan.fingerprint, plan.ks)
    page = _page(grading, plan).render(report)
    after = run.file_digests()
    if after != before:
        raise UsageError(
            f"the generations in {run.folder} changed while they were graded: let eval generate end, then grade again"
        )
    timing = {
        "seconds": time.monotonic() - begun,
        "generation_files": before,
        "judge_calls": 0 if judge is None else judge.calls,
        "damaged_lines": [f"{damage.place}: {damage.kind}: {damage.problem}" for damage in grading.damages],
    }
    verdicts = [grading.verdicts[cell] for cell in sorted(grading.verdicts)]
    write_grade(plan.out, report=report, verdicts=verdicts, page=page, timing=timing)
    return Outcome(plan.out, report, grading, before, 0 if judge is None else judge.calls)


def _judge(choice: JudgeChoice, out: Path, connect: Connect, stack: ExitStack) -> Judge:
    if choice.url is None:
        return Judge(choice.identity, choice.cache, None, repeats=choice.repeats)
    path = out / f"{JUDGE}.jsonl"
    writer = stack.enter_context(JsonlWriter(path, sync_every=8))  # First, since it moves a torn line out of the way.
    line = Line(connect(choice.url, choice.identity.model), choice.template, writer.append, choice.concurrency)
    return Judge(choice.identity, load_cache(path), line, repeats=choice.repeats)


def _page(grading: Grading, plan: Plan) -> GradePage:
    """The page with every cell entered: its answer as it was judged, or its last error."""
    run, ledger = grading.run, grading.ledger
    page = GradePage(run.tasks, run.samples)
    for cell, verdict in grading.verdicts.items():
        if cell in ledger.answers:
            generation = run.read(ledger.answers[cell].place)
            if plan.rules.budget is not None and generation.output is not None:
                generation = replace(generation, output=plan.rules.budget.cut(generation.output) or generation.output)
        else:
            generation = run.read(ledger.failures[cell][max(ledger.failures[cell])])
        page.add(verdict.as_row(), generation)
    return page
