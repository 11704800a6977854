"""Asking every cell that is owed: bounded concurrency, retries with back-off, and an end that loses nothing."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from detharness.eval.asking import output_of, request_of
from detharness.eval.generate.seed_proof import SeedProof, prove_seed
from detharness.eval.generate.settings import Plan
from detharness.eval.generate.store import Store
from detharness.eval.records import Generation, Output, TaskRow
from detharness.records.environment import environment_fingerprint
from detharness.targets.generation import GenerationError, Reply

_FIRST_WAIT = 0.5  # Seconds before the second attempt; doubled each time, up to the longest.
_LONGEST_WAIT = 30.0
_LONGEST_ASKED_FOR = 300.0  # A server knows better, but not for ever.

_Owed = tuple[TaskRow, int]


@dataclass
class Progress:
    """How far a session is. done, expected: cells with an output and cells of the run, by modality.

    left: cells this session has still to end. errors: cells it gave up. tokens: of its replies, where they are counted.
    """

    done: dict[str, int]
    expected: dict[str, int]
    left: int
    errors: int = 0
    tokens: int = 0

    @property
    def complete(self) -> bool:
        """Whether every cell of the run has an output."""
        return self.done == self.expected


@dataclass
class Outcome:
    """How a session ended. asked: cells it tried. proof: None where nothing was asked."""

    progress: Progress
    asked: int = 0
    seconds: float = 0.0
    proof: SeedProof | None = None
    interrupted: bool = False
    failures: dict[str, str] = field(default_factory=dict)  # Kind of error -> the last sentence of that kind.


def progress_of(plan: Plan, store: Store) -> Progress:
    """How far the run in ``store`` is before anything is asked."""
    expected: dict[str, int] = {}
    done: dict[str, int] = {}
    for row in plan.loaded.rows:
        answered = sum((row.task_id, sample) in store.answered for sample in range(plan.samples))
        expected[row.modality] = expected.get(row.modality, 0) + plan.samples
        done[row.modality] = done.get(row.modality, 0) + answered
    left = sum((row.task_id, sample) not in store.answered for row, sample in plan.cells)
    return Progress(done, expected, left)


def run(plan: Plan, store: Store, report: Callable[[Progress], None], on_first_signal: Callable[[], None]) -> Outcome:
    """Ask what is owed; ``report`` is called after each attempt. The target is closed at the end.

    Ctrl-C or SIGTERM once: what runs ends and is recorded, and nothing more is asked; twice: KeyboardInterrupt at once.
    """
    try:
        return asyncio.run(_Session(plan, store, report).run(on_first_signal))
    except asyncio.CancelledError:  # Nobody but the second signal cancels.
        raise KeyboardInterrupt from None


class _Session:
    def __init__(self, plan: Plan, store: Store, report: Callable[[Progress], None]) -> None:
        self._plan = plan
        self._store = store
        self._report = report
        self._stop = asyncio.Event()
        self._outcome = Outcome(progress_of(plan, store))

    async def run(self, on_first_signal: Callable[[], None]) -> Outcome:
        owed = [(row, sample) for row, sample in self._plan.cells if (row.task_id, sample) not in self._store.answered]
        started = time.monotonic()
        try:
            with self._signals(on_first_signal):
                if owed:
                    await self._begin(owed)
                    await self._ask_all(owed)
        finally:
            await self._plan.target.close()
        self._outcome.seconds = time.monotonic() - started
        return self._outcome

    async def _begin(self, owed: Sequence[_Owed]) -> None:
        row, sample = owed[0]
        request = request_of(self._plan.request_record(row, sample), row, self._plan.loaded.images)
        self._outcome.proof = await prove_seed(self._plan.target, request)
        self._store.begin(
            {
                "concurrency": self._plan.settings.concurrency,
                "owed": len(owed),
                "seed_proof": self._outcome.proof.as_record(),
                "environment": environment_fingerprint(),
            }
        )

    async def _ask_all(self, owed: Sequence[_Owed]) -> None:
        queue = iter(owed)
        workers = [
            asyncio.create_task(self._work(queue)) for _ in range(min(self._plan.settings.concurrency, len(owed)))
        ]
        try:
            await asyncio.gather(*workers)
        except BaseException:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
            raise

    @contextmanager
    def _signals(self, on_first_signal: Callable[[], None]) -> Iterator[None]:
        loop, main = asyncio.get_running_loop(), asyncio.current_task()
        assert main is not None

        def stop() -> None:
            if self._stop.is_set():
                main.cancel()
            else:
                self._stop.set()
                self._outcome.interrupted = True
                on_first_signal()

        numbers = (signal.SIGINT, signal.SIGTERM)
        before = [signal.getsignal(number) for number in numbers]
        for number in numbers:
            loop.add_signal_handler(number, stop)
        try:
            yield
        finally:
            for number, handler in zip(numbers, before, strict=True):
                loop.remove_signal_handler(number)
                signal.signal(number, handler)

    async def _work(self, queue: Iterator[_Owed]) -> None:
        for row, sample in queue:
            if self._stop.is_set():
                return
            await self._ask(row, sample)

    async def _ask(self, row: TaskRow, sample: int) -> None:
        """Attempts at one cell until it has an output, nothing more can help, or the retries are used up."""
        plan, outcome = self._plan, self._outcome
        request = request_of(plan.request_record(row, sample), row, plan.loaded.images)
        outcome.asked += 1
        for attempt in range(plan.settings.retries + 1):
            started = time.monotonic()
            try:
                reply = await plan.target.generate(request)
                output = output_of(reply)
            except GenerationError as error:
                outcome.failures[error.kind] = str(error)
                given_up = not error.retriable or attempt == plan.settings.retries or self._stop.is_set()
                outcome.progress.errors += given_up
                outcome.progress.left -= given_up
                self._record(row, sample, error, None, time.monotonic() - started)
                if given_up or await self._stopped_within(_wait(attempt, error.retry_after)):
                    return
            else:
                outcome.progress.left -= 1
                outcome.progress.done[row.modality] += 1
                outcome.progress.tokens += output.completion_tokens or 0
                self._record(row, sample, output, reply, time.monotonic() - started)
                return

    async def _stopped_within(self, seconds: float) -> bool:
        """Sleep, unless the session is to stop; whether it is."""
        try:
            await asyncio.wait_for(self._stop.wait(), seconds)
        except TimeoutError:
            return False
        return True

    def _record(
        self, row: TaskRow, sample: int, result: Output | GenerationError, reply: Reply | None, seconds: float
    ) -> None:
        plan, store = self._plan, self._store
        answered = isinstance(result, Output)
        store.add(
            Generation(
                task=plan.loaded.task.name,
                task_id=row.task_id,
                sample_index=sample,
                attempt=store.attempts((row.task_id, sample)) + 1,
                modality=row.modality,
                row_digest=row.row_digest,
                request=plan.request_record(row, sample),
                status="ok" if answered else "error",
                output=result if isinstance(result, Output) else None,
                error=None if isinstance(result, Output) else {"kind": result.kind, "detail": str(result)},
                batch=None if reply is None else reply.batch,
                session=store.session,
                seconds=round(seconds, 3),
            )
        )
        self._report(self._outcome.progress)


def _wait(attempt: int, asked_for: float | None) -> float:
    """Seconds until the next attempt: what the server asked for, else doubling; with jitter, and never for long."""
    if asked_for is not None:
        return min(max(asked_for, 0.0), _LONGEST_ASKED_FOR) + _FIRST_WAIT * random.random()
    return min(_FIRST_WAIT * 2.0**attempt, _LONGEST_WAIT) * (0.5 + random.random())
