"""A run as its files hold it: the tasks that were asked, and every attempt at an answer, one after the other.

``Run`` streams; ``Ledger`` keeps which attempt stands for each cell. Grading, verifying and comparing read through
them, so that they agree on what counts: a duplicate is kept once, a conflict is never resolved by order, a record
whose digests do not fit its content is no answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from detharness.errors import UsageError
from detharness.eval.reading import generation_of, lines_of, pieces_of, task_row_of
from detharness.eval.records import GENERATIONS, TASKS, Cell, Generation, TaskRow, root_of
from detharness.records.canonical import parse_json, read_json
from detharness.records.digests import sha256_file, sha256_value
from detharness.records.jsonl import read_jsonl
from detharness.records.run_folder import MANIFEST


@dataclass(frozen=True)
class Place:
    """Where a record stands: a file's name, its line, and the bytes in it."""

    file: str
    line: int
    offset: int
    length: int

    def __str__(self) -> str:
        return f"{self.file}, line {self.line}"


@dataclass(frozen=True)
class Attempt:
    """One record and where it stands.

    output_digest, error_digest: of the output or the error as it stands in the file, None where it has none. altered:
    the digests written beside it that do not fit its content, so that somebody or something changed it.
    """

    generation: Generation
    place: Place
    output_digest: str | None
    error_digest: str | None
    request_digest: str
    altered: tuple[str, ...]


@dataclass(frozen=True)
class Damage:
    """A line that is not one whole record. kind: "joined" (all of it was recovered) or "torn" (some of it is lost)."""

    place: Place
    kind: str
    problem: str


@dataclass(frozen=True)
class Run:
    """A run folder, opened. ``tasks`` in the order of the data file; ``samples`` are required of each."""

    folder: Path
    manifest: dict[str, Any]
    task: str
    samples: int
    tasks: tuple[TaskRow, ...]

    @cached_property
    def rows(self) -> dict[str, TaskRow]:
        """Task id -> its row."""
        return {row.task_id: row for row in self.tasks}

    @cached_property
    def messages_digests(self) -> dict[str, str]:
        """Task id -> digest of the messages that are sent for it."""
        return {row.task_id: sha256_value(list(row.messages)) for row in self.tasks}

    @property
    def answer_kind(self) -> str:
        """What its answers are: "integer", "letter" or "hle"."""
        kind = self.manifest.get("answer_kind")
        if kind not in ("integer", "letter", "hle"):
            raise UsageError(f"{self.folder / MANIFEST} is not of eval generate: 'answer_kind' is no kind it writes")
        return str(kind)

    @property
    def files(self) -> tuple[Path, ...]:
        """The generation file and its shards (``generations-*.jsonl``), those that are there, by name."""
        shards = sorted(self.folder.glob(f"{GENERATIONS}-*.jsonl"))
        whole = self.folder / f"{GENERATIONS}.jsonl"
        return tuple(path for path in (whole, *shards) if path.is_file())

    def file_digests(self) -> dict[str, str]:
        """Name -> SHA-256 of each generation file as it is now."""
        try:
            return {path.name: sha256_file(path) for path in self.files}
        except OSError as error:
            raise UsageError(f"cannot read the generations in {self.folder}: {error.strerror}") from None

    def attempts(self, damages: list[Damage]) -> Iterator[Attempt]:
        """Every record of every generation file, in file order; lines that are not whole are added to ``damages``.

        One line is in memory at a time. UsageError names file and line of a row that is no generation record.
        """
        for path in self.files:
            try:
                with path.open("rb") as file:
                    for number, offset, line in lines_of(file):
                        yield from self._attempts_of(path, number, offset, line, damages)
            except OSError as error:
                raise UsageError(f"cannot read {path}: {error.strerror}") from None

    def _attempts_of(
        self, path: Path, number: int, offset: int, line: bytes, damages: list[Damage]
    ) -> Iterator[Attempt]:
        where = f"{path}, line {number}"
        try:
            pieces = pieces_of(line)
        except UsageError as error:
            raise UsageError(f"{where}: {error}") from None
        problem = next((piece.problem for piece in pieces if piece.problem is not None), None)
        if problem is not None:
            damages.append(Damage(Place(path.name, number, offset, len(line)), "torn", problem))
        elif len(pieces) > 1:
            place = Place(path.name, number, offset, len(line))
            damages.append(Damage(place, "joined", f"{len(pieces)} records stand on one line"))
        for piece in pieces:
            if piece.value is not None:
                place = Place(path.name, number, offset + piece.start, piece.length)
                yield _attempt_of(piece.value, place, where, self.task)

    def read(self, place: Place) -> Generation:
        """The record at ``place`` once more, by seeking to it."""
        path = self.folder / place.file
        try:
            with path.open("rb") as file:
                file.seek(place.offset)
                data = file.read(place.length)
            return generation_of(parse_json(data), f"{path}, line {place.line}")
        except (OSError, ValueError):
            raise UsageError(
                f"{path}, line {place.line}: the record is gone: the file changed while it was read"
            ) from None


def _attempt_of(row: dict[str, Any], place: Place, where: str, task: str) -> Attempt:
    generation = generation_of(row, where)
    if generation.task != task:
        raise UsageError(f"{where}: a record of the task {generation.task!r} in a run of {task!r}: move it to its run")
    try:
        output_digest = None if generation.output is None else generation.output.digest
        error_digest = None if generation.error is None else sha256_value(generation.error)
        request_digest = sha256_value(generation.request)
    except ValueError as error:  # An integer of more than 64 bits, or deep nesting: valid JSON, but not canonical.
        raise UsageError(f"{where}: {error}") from None
    written = {"output_digest": output_digest, "request_digest": request_digest}
    altered = tuple(name for name, digest in written.items() if row.get(name) != digest)
    return Attempt(generation, place, output_digest, error_digest, request_digest, altered)


def open_run(folder: Path) -> Run:
    """Open the run in ``folder``; UsageError in one sentence where it is none, or a file of it is damaged."""
    if not (folder / MANIFEST).is_file():
        raise UsageError(f"{folder} is no run: it holds no {MANIFEST}; name the --out folder of eval generate")
    manifest = read_json(folder / MANIFEST)
    if not isinstance(manifest, dict):
        raise UsageError(f"{folder / MANIFEST} is not a manifest: it must hold a JSON object")
    task, samples = manifest.get("task"), manifest.get("samples")
    if not isinstance(task, str) or type(samples) is not int or samples < 1:
        raise UsageError(f"{folder / MANIFEST} is not of eval generate: 'task' must be a text, 'samples' at least 1")
    path = folder / f"{TASKS}.jsonl"
    rows = tuple(task_row_of(row.value, f"{path}, line {row.line}") for row in read_jsonl(path))
    if not rows:
        raise UsageError(f"{path} holds no task, so there is nothing that could have been asked")
    seen: set[str] = set()
    for number, row in enumerate(rows, start=1):
        if row.task_id in seen:
            raise UsageError(f"{path}, row {number}: the task id {row.task_id!r} stands there twice")
        seen.add(row.task_id)
    return Run(folder, manifest, task, samples, rows)


@dataclass(frozen=True)
class Answer:
    """The record that stands for a cell."""

    place: Place
    output_digest: str
    request_digest: str
    completion_tokens: int | None

    @property
    def identity(self) -> tuple[str, str, int | None]:
        """Two records of a cell are one, twice, when these are equal."""
        return self.output_digest, self.request_digest, self.completion_tokens


@dataclass
class Ledger:
    """Which record stands for each cell of ``run``, whatever the order they are taken in.

    answers: cell -> its record with an output. failures: cell -> its distinct error rows, by session, attempt and
    digest. duplicates: records beyond the first that say the same as it. conflicts: pairs of places that hold different
    answers to one cell. extra: cells of records that the run did not ask for. altered, outdated: places of records that
    are no answer: their digests do not fit, or they answer another version of the data row or other messages.
    """

    run: Run
    answers: dict[Cell, Answer] = field(default_factory=dict)
    failures: dict[Cell, dict[tuple[int, int, str], Place]] = field(default_factory=dict)
    duplicates: int = 0
    conflicts: list[tuple[Cell, Place, Place]] = field(default_factory=list)
    extra: set[Cell] = field(default_factory=set)
    altered: list[Place] = field(default_factory=list)
    outdated: list[Place] = field(default_factory=list)

    def take(self, attempt: Attempt) -> bool:
        """Enter one record; whether it is the first answer to a cell of the run, and so the one to look at."""
        generation = attempt.generation
        row = self.run.rows.get(generation.task_id)
        if row is None or generation.sample_index >= self.run.samples:
            self.extra.add(generation.cell)
        elif attempt.altered:
            self.altered.append(attempt.place)
        elif (generation.row_digest, generation.request.get("messages_digest")) != (
            row.row_digest,
            self.run.messages_digests[row.task_id],
        ):
            self.outdated.append(attempt.place)
        elif attempt.error_digest is not None:
            mark = generation.session, generation.attempt, attempt.error_digest
            failures = self.failures.setdefault(generation.cell, {})
            self.duplicates += mark in failures
            failures.setdefault(mark, attempt.place)
        else:
            assert generation.output is not None  # A row without an error has one.
            assert attempt.output_digest is not None
            tokens = generation.output.completion_tokens
            answer = Answer(attempt.place, attempt.output_digest, attempt.request_digest, tokens)
            held = self.answers.setdefault(generation.cell, answer)
            if held is answer:
                return True
            if held.identity == answer.identity:
                self.duplicates += 1
            else:
                self.conflicts.append((generation.cell, held.place, answer.place))
        return False

    @property
    def root(self) -> str:
        """The order-independent digest over the outputs of all answered cells."""
        return root_of({cell: answer.output_digest for cell, answer in self.answers.items()})

    def attempts(self, cell: Cell) -> int:
        """How often ``cell`` was tried: its distinct error rows and its answer."""
        return len(self.failures.get(cell, ())) + (cell in self.answers)

    def refuse_conflicts(self) -> None:
        """UsageError if a cell has two different answers, naming both lines."""
        if self.conflicts:
            (task_id, sample), first, second = self.conflicts[0]
            raise UsageError(
                f"{first} and {second} hold different answers to task {task_id!r}, sample {sample}: "
                "keep one of them, or keep the two runs in folders of their own"
            )
