"""What was asked of a generation, checked before anything is opened or written."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detharness.errors import UsageError
from detharness.eval.records import Cell, TaskRow
from detharness.eval.tasks import LoadedTask, load_task, messages_for
from detharness.records.digests import sha256_value
from detharness.targets.generation import GenerationTarget

SCHEMA = "detharness.eval/1"
_SEED_BITS = 63  # What the engine's noise and most servers take.


@dataclass(frozen=True, kw_only=True)
class GenerateSettings:
    """The options of ``eval generate``, as they were typed. samples None: the task's own number.

    model: at an endpoint. kernels, dtype: of the engine."""

    task: str
    data: Path | None = None
    target: str
    model: str | None = None
    kernels: str = "invariant"
    dtype: str = "fp32"
    out: Path | None = None
    samples: int | None = None
    concurrency: int = 8
    max_tokens: int = 1024
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    stop: tuple[str, ...] = ()
    seed: int = 0
    shuffle_seed: int = 0
    limit: int | None = None
    retries: int = 4

    def sampling(self) -> dict[str, Any]:
        """The sampling fields of every request, as records hold them."""
        return {
            "max_tokens": self.max_tokens,
            "temperature": float(self.temperature),
            "top_p": float(self.top_p),
            "top_k": self.top_k,
            "min_p": float(self.min_p),
            "stop": list(self.stop),
        }


@dataclass(frozen=True)
class Plan:
    """A generation that can begin. cells: those the target can be asked, in task order; owed: those it cannot."""

    settings: GenerateSettings
    loaded: LoadedTask
    target: GenerationTarget
    samples: int
    manifest: dict[str, Any]
    target_digest: str
    cells: tuple[tuple[TaskRow, int], ...]
    owed: int

    def request_record(self, row: TaskRow, sample: int) -> dict[str, Any]:
        """What a record says of the request: everything that decides it, and nothing of order or concurrency."""
        return {
            "task_version": self.loaded.task.version,
            "template_digest": self.loaded.task.template.digest,
            "messages_digest": sha256_value(list(row.messages)),
            "sampling": self.settings.sampling(),
            "seed": cell_seed(self.settings.seed, self.loaded.task.name, (row.task_id, sample)),
            "target_digest": self.target_digest,
        }


def cell_seed(run_seed: int, task: str, cell: Cell) -> int:
    """The seed of one cell: 63 bits of SHA-256 over run seed, task, task id and sample, so order cannot change it."""
    return int(sha256_value([run_seed, task, *cell])[:16], 16) >> (64 - _SEED_BITS)


def check(settings: GenerateSettings) -> None:
    """UsageError for an option out of its range."""
    whole = (
        ("--samples", settings.samples, 1, 10_000),
        ("--concurrency", settings.concurrency, 1, 4096),
        ("--max-tokens", settings.max_tokens, 1, 10_000_000),
        ("--top-k", settings.top_k, 0, 2**31),
        ("--limit", settings.limit, 1, 10_000_000),
        ("--retries", settings.retries, 0, 100),
        ("--seed", settings.seed, 0, 2**63 - 1),
        ("--shuffle-seed", settings.shuffle_seed, 0, 2**63 - 1),
    )
    for option, value, low, high in whole:
        if value is not None and not low <= value <= high:
            raise UsageError(f"{option} must be from {low} to {high}, not {value}")
    real = (
        ("--temperature", settings.temperature, 0.0, 100.0),
        ("--top-p", settings.top_p, 0.0, 1.0),
        ("--min-p", settings.min_p, 0.0, 1.0),
    )
    for name, number, least, most in real:
        if not math.isfinite(number) or not least <= number <= most:
            raise UsageError(f"{name} must be from {least} to {most}, not {number}")
    if settings.top_p == 0.0:
        raise UsageError("--top-p must be above 0")
    if any(text == "" for text in settings.stop):
        raise UsageError("--stop must not be empty")


def prepare(settings: GenerateSettings, open_target: Callable[[], GenerationTarget]) -> Plan:
    """Check the options, read the data, open the target, and refuse what cannot fit its context before any request."""
    check(settings)
    loaded = load_task(settings.task, settings.data, shuffle_seed=settings.shuffle_seed, limit=settings.limit)
    target = open_target()
    samples = settings.samples or loaded.task.samples
    askable = [row for row in loaded.rows if row.modality == "text" or target.accepts_images]
    _check_context(settings, loaded, target, askable)
    described = target.describe()
    task = loaded.task
    manifest = {
        "schema": SCHEMA,
        "command": "eval generate",
        "task": task.name,
        "task_version": task.version,
        "answer_kind": task.answer_kind,
        "template": {"id": task.template.id, "digest": task.template.digest, "text": task.template.text},
        "samples": samples,
        "sampling": settings.sampling(),
        "seed": settings.seed,
        "shuffle_seed": settings.shuffle_seed,
        "data": {**loaded.facts, "limit": settings.limit},
        "matches_published": loaded.facts["matches_published"],
        "target": described,
        "target_argument": {
            "target": settings.target,
            "model": settings.model,
            "kernels": settings.kernels,
            "dtype": settings.dtype,
        },
    }
    return Plan(
        settings=settings,
        loaded=loaded,
        target=target,
        samples=samples,
        manifest=manifest,
        target_digest=sha256_value(described),
        cells=tuple((row, sample) for sample in range(samples) for row in askable),
        owed=(len(loaded.rows) - len(askable)) * samples,
    )


def _check_context(
    settings: GenerateSettings, loaded: LoadedTask, target: GenerationTarget, rows: list[TaskRow]
) -> None:
    """A prompt that is cut to fit is another prompt: refused before the first request."""
    if target.context_length is None:
        return
    if settings.max_tokens >= target.context_length:
        raise UsageError(
            f"--max-tokens {settings.max_tokens} leaves no room for a prompt in the target's context of "
            f"{target.context_length} tokens: lower it"
        )
    for row in rows:
        count = target.count_prompt_tokens(messages_for(row, loaded.images))
        room = None if count is None else target.context_length - count
        if room is not None and room < settings.max_tokens:
            remedy = f"lower --max-tokens to at most {room}" if room > 0 else "leave that task out of the data"
            raise UsageError(
                f"task {row.task_id!r:.80} has a prompt of {count} tokens, which with --max-tokens "
                f"{settings.max_tokens} passes the target's context of {target.context_length}: {remedy}"
            )
