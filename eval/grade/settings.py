"""What was asked of a grader, checked before anything is read or written."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detharness.errors import UsageError
from detharness.eval.extraction import DEFAULT_THINK_TAGS, rules_fingerprint
from detharness.eval.grade.budget import Budget
from detharness.eval.grade.grading import Mode, Rules
from detharness.eval.grade.judge import PARAMS
from detharness.eval.grade.judge_cache import JudgeCache, JudgeIdentity, load_cache
from detharness.eval.grade.judge_prompt import OWN_TEMPLATE, JudgeTemplate, load_template
from detharness.eval.grade.metrics import default_ks
from detharness.eval.grade.stored import GRADE
from detharness.eval.records import TASKS
from detharness.eval.runs import Run
from detharness.eval.tasks.task import LETTERS
from detharness.targets.detokenizer import Detokenizer

MODES: tuple[Mode, ...] = ("strict", "lenient")

_INTEGER = re.compile(r"[0-9]{1,3}")


@dataclass(frozen=True, kw_only=True)
class GradeSettings:
    """The options of ``eval grade``, as they were typed."""

    mode: str = "strict"
    out: Path | None = None
    think_tags: Sequence[str] = ()
    at: str | None = None
    judge: str | None = None
    judge_model: str | None = None
    judge_cache: Path | None = None
    judge_template: Path | None = None
    judge_repeats: int = 1
    judge_concurrency: int = 8
    max_tokens_budget: int | None = None
    tokenizer: str | None = None


@dataclass(frozen=True)
class JudgeChoice:
    """Who judges. url: where to ask, None to replay ``cache`` alone."""

    identity: JudgeIdentity
    template: JudgeTemplate
    url: str | None
    cache: JudgeCache
    repeats: int
    concurrency: int


@dataclass(frozen=True)
class Plan:
    """A grading that can begin. fingerprint: what the grader is, plain JSON. ks: for pass@k and maj@k."""

    run: Run
    out: Path
    rules: Rules
    judge: JudgeChoice | None
    fingerprint: dict[str, Any]
    ks: list[int]


def plan_grade(run: Run, settings: GradeSettings) -> Plan:
    """Check ``settings`` for ``run``; UsageError names the option that does not fit. Nothing is written."""
    mode = next((mode for mode in MODES if mode == settings.mode), None)
    if mode is None:
        raise UsageError(f"--mode {settings.mode!r} is not one of: {', '.join(MODES)}")
    kind = run.answer_kind
    _check_gold_answers(run, kind)
    think_tags = tuple(settings.think_tags) or DEFAULT_THINK_TAGS
    budget = _budget(settings)
    judge = _judge(settings, kind)
    grader = ("judge" if judge else "exact") if kind == "hle" else "rules"
    fingerprint = {
        "grader": grader,
        "answer_kind": kind,
        "rules": rules_fingerprint(mode, think_tags),
        "judge": None if judge is None else {**judge.identity.describe(), "repeats": judge.repeats},
        "max_tokens_budget": settings.max_tokens_budget,
        "tokenizer_digest": None if budget is None else budget.tokenizer_digest,
    }
    out = settings.out or run.folder / _folder_name(settings)
    return Plan(run, out, Rules(kind, mode, think_tags, budget), judge, fingerprint, _ks(settings.at, run.samples))


def _check_gold_answers(run: Run, kind: str) -> None:
    """UsageError for a task that no reply could answer rightly, since its gold answer is none of the kind."""
    for number, row in enumerate(run.tasks, start=1):
        fits = {
            "integer": _INTEGER.fullmatch(row.gold) is not None,
            "letter": row.gold in tuple(LETTERS[: len(row.options or ())]),
            "hle": True,
        }
        if not fits[kind]:
            place = f"{run.folder / TASKS}.jsonl, row {number}"
            raise UsageError(f"{place}: the gold answer {row.gold!r:.60} is no {kind} that the task could have")


def _folder_name(settings: GradeSettings) -> str:
    """The headline grade has the plain name; others stand beside it, so that none of them takes its place."""
    lenient = "-lenient" if settings.mode == "lenient" else ""
    budget = "" if settings.max_tokens_budget is None else f"-at-{settings.max_tokens_budget}-tokens"
    return f"{GRADE}{lenient}{budget}"


def _ks(text: str | None, samples: int) -> list[int]:
    if text is None:
        return default_ks(samples)
    parts = text.split(",")
    if not all(part.strip().isascii() and part.strip().isdigit() and 0 < len(part.strip()) < 7 for part in parts):
        raise UsageError(f"--at {text!r} must be whole numbers with commas between them, such as 1,8,64")
    ks = sorted({int(part) for part in parts})
    if ks[0] < 1:
        raise UsageError(f"--at {text!r}: each number must be at least 1")
    return ks


def _budget(settings: GradeSettings) -> Budget | None:
    if settings.max_tokens_budget is None:
        if settings.tokenizer is not None:
            raise UsageError("--tokenizer is only read with --max-tokens-budget: give both or neither")
        return None
    if settings.max_tokens_budget < 1:
        raise UsageError(f"--max-tokens-budget {settings.max_tokens_budget} must be at least 1")
    if settings.tokenizer is None:
        return Budget(settings.max_tokens_budget, None, None)
    detokenizer = Detokenizer(settings.tokenizer)
    return Budget(settings.max_tokens_budget, detokenizer.decode, detokenizer.digest)


def _judge(settings: GradeSettings, kind: str) -> JudgeChoice | None:
    if settings.judge is None and settings.judge_cache is None:
        given = {"--judge-model": settings.judge_model, "--judge-template": settings.judge_template}
        for option, value in given.items():
            if value is not None:
                raise UsageError(f"{option} says how to judge, but no judge is named: give --judge or --judge-cache")
        return None
    if kind != "hle":
        raise UsageError(
            f"a judge is for free-form answers; this task's are graded by rules alone ({kind}): leave it out"
        )
    if settings.judge_repeats < 1 or settings.judge_concurrency < 1:
        raise UsageError("--judge-repeats and --judge-concurrency must be at least 1")
    template = OWN_TEMPLATE if settings.judge_template is None else load_template(settings.judge_template)
    if settings.judge is not None:
        if settings.judge_cache is not None:
            raise UsageError("--judge asks and --judge-cache replays: give one of them")
        if settings.judge_model is None:
            raise UsageError("--judge needs --judge-model: the name the endpoint knows the judge by")
        identity = JudgeIdentity(settings.judge_model, PARAMS, template.id, template.digest)
        cache = JudgeCache()
    else:
        assert settings.judge_cache is not None
        if settings.judge_template is not None:
            raise UsageError("--judge-template says how to ask, and --judge-cache asks nobody: leave one of them out")
        cache = load_cache(settings.judge_cache)
        identity = cache.only_judge(settings.judge_cache, settings.judge_model)
    return JudgeChoice(identity, template, settings.judge, cache, settings.judge_repeats, settings.judge_concurrency)
