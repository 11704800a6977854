"""One pass over a run's records, each judged by the rules as it goes by; then the judge on what is left to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

from detharness.eval.extraction import final_channel, judge_reply
from detharness.eval.grade.budget import Budget
from detharness.eval.grade.judge import Judge, Opinions, Question
from detharness.eval.grade.judge_prompt import JudgeReply
from detharness.eval.grade.suspicions import Replays, Requests
from detharness.eval.grade.verdicts import Name, Verdict
from detharness.eval.records import Cell, Output, TaskRow
from detharness.eval.runs import Damage, Ledger, Place, Run
from detharness.records.digests import sha256_bytes

Mode = Literal["strict", "lenient"]

Progress = Callable[[int], AbstractContextManager[Callable[[str], None]]]
"""Opens a display of so many units of work; yields the function that reports one as done."""

_LARGEST = 2**63  # An integer that canonical JSON can hold; a model may write a larger one.


@dataclass(frozen=True)
class Rules:
    """How answers are found in replies. answer_kind: "integer", "letter" or "hle"."""

    answer_kind: str
    mode: Mode
    think_tags: tuple[str, ...]
    budget: Budget | None = None


@dataclass(frozen=True)
class Flips:
    """How often a judge that was asked several times contradicted itself, over ``compared`` responses."""

    compared: int
    flipped: int


@dataclass(frozen=True)
class Grading:
    """``verdicts``: of every cell with a record. failures: the judge's, as (kind, sentence) for each response."""

    run: Run
    ledger: Ledger
    verdicts: Mapping[Cell, Verdict]
    damages: Sequence[Damage]
    warnings: Sequence[Mapping[str, Any]]
    flips: Flips | None
    failures: Sequence[tuple[str, str]]


def _silent(total: int) -> AbstractContextManager[Callable[[str], None]]:
    return nullcontext(lambda note: None)


@dataclass(frozen=True)
class _Draft:
    """A verdict by the rules. response_digest: of what a judge would be shown, None where no judge is to decide."""

    name: Name
    extracted: str | int | None
    flags: frozenset[str]
    confidence: int | None
    response_digest: str | None


def grade_records(run: Run, rules: Rules, judge: Judge | None = None, progress: Progress = _silent) -> Grading:
    """Judge every record of ``run``; UsageError where a cell has two different answers.

    progress: shows how many of the responses that the judge decides on are done. Reads the files once, a line at a
    time; a response that needs the judge is read again when it is its turn.
    """
    ledger, replays, requests = Ledger(run), Replays(), Requests()
    damages: list[Damage] = []
    drafts: dict[Cell, _Draft] = {}
    for attempt in run.attempts(damages):
        if ledger.take(attempt):
            generation, answer = attempt.generation, ledger.answers[attempt.generation.cell]
            assert generation.output is not None  # The ledger takes an answer for one only when it holds an output.
            replays.add(generation, answer.output_digest)
            requests.add(generation)
            drafts[generation.cell] = _draft(run.rows[generation.task_id], generation.output, rules, judge)
    ledger.refuse_conflicts()
    opinions: Mapping[Question, Opinions] = {}
    questions: dict[Cell, Question] = {}
    if judge is not None:
        questions = _questions(run, rules, drafts, {cell: answer.place for cell, answer in ledger.answers.items()})
        distinct = list(dict.fromkeys(questions[cell] for cell in sorted(questions)))
        with progress(len(distinct)) as advance:
            opinions = asyncio.run(_ask(judge, distinct, lambda: advance("judged")))
    verdicts = {}
    for cell in sorted(ledger.answers.keys() | ledger.failures.keys()):
        draft = drafts.get(cell) or _Draft("error", None, frozenset(), None, None)
        opinion = opinions[questions[cell]] if cell in questions else None
        verdicts[cell] = _verdict(cell, draft, opinion, judge, ledger)
    return Grading(
        run=run,
        ledger=ledger,
        verdicts=verdicts,
        damages=damages,
        warnings=[*replays.warnings(), *requests.warnings()],
        flips=None if judge is None else _flips(opinions.values()),
        failures=[opinion.failure for opinion in opinions.values() if opinion.failure is not None],
    )


def _draft(row: TaskRow, output: Output, rules: Rules, judge: Judge | None) -> _Draft:
    cut = output if rules.budget is None else rules.budget.cut(output)
    if cut is None:
        return _Draft("over_budget", None, frozenset(), None, None)
    found = judge_reply(
        rules.answer_kind,
        row,
        cut.text,
        cut.reasoning,
        cut.finish_reason,
        mode=rules.mode,
        think_tags=rules.think_tags,
    )
    flags = frozenset(found.flags) | ({"truncated"} if cut.finish_reason == "length" else set())
    response_digest = None
    if judge is not None and (response := _response(cut, rules)):
        response_digest = sha256_bytes(response.encode())
    extracted = found.extracted
    if isinstance(extracted, int) and abs(extracted) >= _LARGEST:
        extracted = str(extracted)
    return _Draft(found.verdict, extracted, flags, found.confidence, response_digest)


def _response(output: Output, rules: Rules) -> str:
    """What a judge is shown of an output: its final channel."""
    return final_channel(output.text, output.reasoning, output.finish_reason, think_tags=rules.think_tags).text or ""


def _questions(
    run: Run, rules: Rules, drafts: Mapping[Cell, _Draft], places: Mapping[Cell, Place]
) -> dict[Cell, Question]:
    """Cell -> its question; equal responses to a task are one question."""
    made: dict[tuple[str, str], Question] = {}
    questions = {}
    for cell in sorted(drafts):
        digest = drafts[cell].response_digest
        if digest is not None:
            row = run.rows[cell[0]]
            key = row.task_id, digest
            if key not in made:
                made[key] = Question(row.row_digest, digest, _loader(run, rules, row, places[cell]))
            questions[cell] = made[key]
    return questions


def _loader(run: Run, rules: Rules, row: TaskRow, place: Place) -> Callable[[], tuple[str, str, str]]:
    def load() -> tuple[str, str, str]:
        output = run.read(place).output
        cut = output if rules.budget is None or output is None else rules.budget.cut(output)
        assert cut is not None  # It was judged before it was put to the judge.
        return row.question, _response(cut, rules), row.gold

    return load


async def _ask(judge: Judge, questions: Sequence[Question], done: Callable[[], None]) -> dict[Question, Opinions]:
    try:
        return await judge.opinions(iter(questions), done)
    finally:
        await judge.close()


def _verdict(cell: Cell, draft: _Draft, opinion: Opinions | None, judge: Judge | None, ledger: Ledger) -> Verdict:
    name, extracted, flags, judge_confidence = draft.name, draft.extracted, draft.flags, None
    if opinion is not None:
        reply = opinion.replies[0]
        name = _name(reply, judge)
        if reply is not None and reply.status == "parsed":
            extracted, judge_confidence = reply.extracted or extracted, reply.confidence
            flags |= set(reply.flags)
    answer = ledger.answers.get(cell)
    return Verdict(
        task_id=cell[0],
        sample_index=cell[1],
        modality=ledger.run.rows[cell[0]].modality,
        verdict=name,
        extracted=extracted,
        flags=tuple(sorted(flags)),
        output_digest=None if answer is None else answer.output_digest,
        attempts=ledger.attempts(cell),
        confidence=draft.confidence,
        judge_confidence=judge_confidence,
    )


def _name(reply: JudgeReply | None, judge: Judge | None) -> Name:
    if reply is None:
        return "judge_failed" if judge is not None and judge.asks else "needs_judge"
    if reply.status == "parsed":
        return "correct" if reply.correct else "incorrect"
    return "unparsed"


def _flips(opinions: Iterable[Opinions]) -> Flips:
    whole = [
        {reply.correct for reply in opinion.replies if reply is not None}
        for opinion in opinions
        if len(opinion.replies) > 1 and all(reply is not None and reply.status == "parsed" for reply in opinion.replies)
    ]
    return Flips(len(whole), sum(len(said) > 1 for said in whole))
