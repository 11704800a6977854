"""The run's folder while it is written: opened once, resumed only under the same requests, never half a record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from detharness.errors import UsageError
from detharness.eval.generate.settings import Plan
from detharness.eval.records import GENERATIONS, SESSIONS, TASKS, Cell, Generation
from detharness.eval.runs import Damage, Ledger, open_run
from detharness.records.atomic import write_atomic
from detharness.records.canonical import canonical_bytes, read_json
from detharness.records.run_folder import MANIFEST, ExistingRun, RunFolder


class Store:
    """The files of one run, locked against a second writer until closed, with what earlier sessions left.

    folder: the run's. resumed: whether it held this run before. answered: cells that have an output. ``session``: the
    number of this one. torn: side files that torn last lines were moved to. damages: lines that are not whole.
    UsageError where the folder holds other requests, other task rows, or another writer.
    """

    def __init__(self, plan: Plan) -> None:
        out = plan.settings.out
        if out is not None and (out / MANIFEST).exists():
            _refuse_other_requests(out, plan.manifest)
        opened = RunFolder.open("eval", plan.manifest, out=out, existing=ExistingRun.RESUME)
        self.folder, self.resumed = opened.path, opened.resumed
        self._generations = opened.records(GENERATIONS)  # Its lock comes first: nothing below may change meanwhile.
        try:
            _keep_tasks(self.folder / f"{TASKS}.jsonl", plan)
            self._sessions = opened.records(SESSIONS)
            torn = (self._generations.torn_tail, self._sessions.torn_tail)
            self.torn = [path for path in torn if path is not None]
            self.session = self._sessions.path.read_bytes().count(b"\n")
            self.damages: list[Damage] = []
            ledger = Ledger(open_run(self.folder))
            for attempt in ledger.run.attempts(self.damages):
                ledger.take(attempt)
            ledger.refuse_conflicts()
        except BaseException:
            self._generations.close()
            raise
        self.answered: set[Cell] = set(ledger.answers)
        self._attempts = {cell: ledger.attempts(cell) for cell in (*ledger.answers, *ledger.failures)}

    def attempts(self, cell: Cell) -> int:
        """How often ``cell`` was tried, in this session and all before it."""
        return self._attempts.get(cell, 0)

    def begin(self, session: Mapping[str, Any]) -> None:
        """Enter this session in ``sessions.jsonl``."""
        self._sessions.append({"session": self.session, **session})

    def add(self, generation: Generation) -> None:
        """Append one attempt; UsageError when the disk refuses it, and then nothing of it is left."""
        self._generations.append(generation.as_row())
        self._attempts[generation.cell] = self.attempts(generation.cell) + 1
        if generation.output is not None:
            self.answered.add(generation.cell)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._sessions.close()
        finally:
            self._generations.close()


def _keep_tasks(path: Path, plan: Plan) -> None:
    data = b"".join(canonical_bytes(asdict(row)) + b"\n" for row in plan.loaded.rows)
    try:
        if not path.exists():
            write_atomic(path, data)
        elif path.read_bytes() != data:
            raise UsageError(f"{path} holds other task rows than the data gives now: use a new --out folder")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None


def _refuse_other_requests(out: Path, manifest: Mapping[str, Any]) -> None:
    """UsageError that names every field in which the run in ``out`` differs from what is asked now."""
    held = read_json(out / MANIFEST)
    if not isinstance(held, dict) or held.get("command") != manifest["command"]:
        raise UsageError(f"{out} holds another kind of run: use a new --out folder")
    before, now = _flat(held), _flat(manifest)
    names = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
    if names:
        shown = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
        raise UsageError(f"{out} holds a run of other requests ({shown}): ask the same, or use a new --out folder")


def _flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, bytes]:
    """Dotted name -> canonical bytes of every leaf."""
    found: dict[str, bytes] = {}
    for name, item in value.items():
        if isinstance(item, dict):
            found.update(_flat(item, f"{prefix}{name}."))
        else:
            found[prefix + name] = canonical_bytes(item)
    return found
