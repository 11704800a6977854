"""The rows of an evaluation run: what was asked (tasks.jsonl) and what came back (generations.jsonl).

Digests cover what a model was asked and what it answered; clocks, hosts, attempts and batch shapes stand outside them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from detharness.records.digests import sha256_value

TASKS = "tasks"  # NAME of NAME.jsonl in a run folder.
GENERATIONS = "generations"
SESSIONS = "sessions"
SCHEMA = "detharness.generation/1"

Modality = Literal["text", "image"]
Cell = tuple[str, int]
"""(task id, sample index)."""


@dataclass(frozen=True)
class TaskRow:
    """One task as it was loaded and rendered: all that grading needs, so that it never reads the data file.

    row_digest: SHA-256 of the canonical data row. gold: the answer as a string (AIME: a canonical integer;
    multiple choice: a letter). options: shown option texts in shown order, None where the task has none.
    permutation: shown index -> index in the data row, None where nothing was shuffled. messages: the chat that was
    sent; an image part is {"type": "image", "digest": ..., "uri_digest": ...} and its bytes stay in the data file.
    extra: what one task alone needs (HLE: answer_type), plain JSON.
    """

    task_id: str
    line: int
    modality: Modality
    row_digest: str
    question: str
    gold: str
    options: tuple[str, ...] | None
    permutation: tuple[int, ...] | None
    messages: tuple[dict[str, Any], ...]
    extra: dict[str, Any]


@dataclass(frozen=True)
class Output:
    """What the target answered. ``text`` is the final channel as sent; ``reasoning`` a separate field, if any.

    token_ids: None unless the target gives them. logprob_bits_digest: SHA-256 over the chosen tokens' raw fp32
    logprobs as little-endian bits, None unless the target gives them; it is not part of ``digest``.
    """

    text: str | None
    reasoning: str | None
    token_ids: tuple[int, ...] | None
    finish_reason: str | None
    prompt_tokens: int | None
    completion_tokens: int | None
    logprob_bits_digest: str | None

    @property
    def digest(self) -> str:
        """SHA-256 of text, reasoning, token ids and finish reason: two outputs are the same when these are."""
        return sha256_value(
            {
                "text": self.text,
                "reasoning": self.reasoning,
                "token_ids": None if self.token_ids is None else list(self.token_ids),
                "finish_reason": self.finish_reason,
            }
        )


@dataclass(frozen=True)
class Generation:
    """One attempt at one cell: an ``output``, or an ``error`` {"kind", "detail"} which is never an answer.

    request: {"task_version", "template_digest", "messages_digest", "sampling": {...}, "seed", "target_digest"}: every
    field that a resume must find unchanged. batch: rows per step seen while it ran ({"min", "max", "mean",
    "first_step", "last_step"}), None where the target cannot say. session: the index of its row in sessions.jsonl.
    """

    task: str
    task_id: str
    sample_index: int
    attempt: int
    modality: Modality
    row_digest: str
    request: dict[str, Any]
    status: Literal["ok", "error"]
    output: Output | None
    error: dict[str, Any] | None
    batch: dict[str, Any] | None
    session: int
    seconds: float

    @property
    def cell(self) -> Cell:
        """The cell that this is an attempt at."""
        return self.task_id, self.sample_index

    def as_row(self) -> dict[str, Any]:
        """The JSON row, with its schema and, where there is an output, ``output_digest`` and ``request_digest``."""
        row = {"schema": SCHEMA, **asdict(self), "request_digest": sha256_value(self.request)}
        row["output_digest"] = None if self.output is None else self.output.digest
        return row


def root_of(digests: Mapping[Cell, str]) -> str:
    """One digest over a run's outputs, whatever their order: SHA-256 of the sorted (task id, sample, digest) list."""
    return sha256_value([[task_id, sample, digests[task_id, sample]] for task_id, sample in sorted(digests)])


def field_names(kind: type[Any]) -> Iterable[str]:
    """The names that a row of ``kind`` must hold."""
    return (field.name for field in fields(kind))
