"""The target of a run, opened again as it was opened then, to ask some of its cells once more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detharness.errors import UsageError
from detharness.eval.asking import output_of, request_of
from detharness.eval.records import Cell, Generation, Output
from detharness.eval.runs import Ledger, Run
from detharness.eval.tasks import load_task
from detharness.eval.verify.regenerate import Regenerated, choose_cells, regenerate
from detharness.records.digests import sha256_value
from detharness.records.run_folder import MANIFEST
from detharness.targets.generation import GenerationRequest, GenerationTarget

Open = Callable[[str, str | None, str, str], GenerationTarget]
"""From a TARGET, a model's name at an endpoint, a kernel set and a dtype to the target."""

Progress = Callable[[int], AbstractContextManager[Callable[[str], None]]]
"""Opens a display of so many units of work; yields the function that reports one as done."""


@dataclass(frozen=True, kw_only=True)
class Again:
    """What to ask again: ``count`` cells drawn by ``seed``, ``concurrency`` at once.

    target: in place of the TARGET in the manifest, as for a model that was moved. data: the data file, for images.
    """

    count: int
    seed: int = 0
    target: str | None = None
    data: Path | None = None
    concurrency: int = 8


def ask_again(ledger: Ledger, again: Again, open_target: Open, progress: Progress) -> list[Regenerated]:
    """Draw answered cells of a run and ask the run's own target for them once more; sorted by cell.

    UsageError where the target cannot be opened, or is not the one that gave the recorded answers.
    """
    if again.count < 1 or again.concurrency < 1:
        raise UsageError("--regenerate and --concurrency must be at least 1")
    run = ledger.run
    argument = _argument(run)
    cells = choose_cells(ledger.answers, again.count, again.seed)
    if not cells:
        return []
    records = [run.read(ledger.answers[cell].place) for cell in cells]
    requests = _requests(ledger, records, _images(run, records, again.data))
    target = open_target(again.target or argument["target"], argument["model"], argument["kernels"], argument["dtype"])

    async def ask(record: Generation) -> Output:
        return output_of(await target.generate(requests[record.cell]))

    async def ask_all() -> list[Regenerated]:
        try:
            _refuse_another(target, run, records)
            with progress(len(records)) as done:
                return await regenerate(records, ask, concurrency=again.concurrency, done=done)
        finally:
            await target.close()

    return asyncio.run(ask_all())


def _argument(run: Run) -> Mapping[str, Any]:
    """How the target was named when the run was made."""
    argument = run.manifest.get("target_argument")
    kinds = {"target": str, "model": str | None, "kernels": str, "dtype": str}
    if not isinstance(argument, dict) or not all(isinstance(argument.get(name), kinds[name]) for name in kinds):
        raise UsageError(f"{run.folder / MANIFEST} does not say how its target was opened: nothing can be asked again")
    return argument


def _images(run: Run, records: Sequence[Generation], data: Path | None) -> Mapping[str, str]:
    if data is None or all(record.modality == "text" for record in records):
        return {}
    return load_task(run.task, data).images


def _requests(
    ledger: Ledger, records: Sequence[Generation], images: Mapping[str, str]
) -> dict[Cell, GenerationRequest]:
    requests = {}
    for record in records:
        try:
            requests[record.cell] = request_of(record.request, ledger.run.rows[record.task_id], images)
        except (KeyError, TypeError):
            place = ledger.answers[record.cell].place
            raise UsageError(f"{place}: the request is not one of eval generate: it cannot be sent again") from None
    return requests


def _refuse_another(target: GenerationTarget, run: Run, records: Sequence[Generation]) -> None:
    """UsageError unless ``target`` is the one that every record names; the manifest says what it was."""
    now, then = target.describe(), run.manifest.get("target")
    digest = sha256_value(now)
    if all(record.request.get("target_digest") == digest for record in records):
        return
    was = then if isinstance(then, dict) else {}
    changed = sorted(name for name in {*was, *now} if name not in was or name not in now or was[name] != now[name])
    what = f"{', '.join(changed)} differ from the manifest" if changed else "the records name another"
    raise UsageError(f"the target is not the one that answered ({what}): name it with --target")
