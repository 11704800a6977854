"""A run's folder: what was asked (manifest), found (report), how long it took (timing), and the records."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from detharness.errors import UsageError
from detharness.records.atomic import write_atomic
from detharness.records.canonical import canonical_bytes, read_json
from detharness.records.jsonl import JsonlWriter

MANIFEST = "manifest.json"
REPORT = "report.json"
TIMING = "timing.json"


class ExistingRun(Enum):
    """What a command does with an output folder that holds a run already."""

    REFUSE = "refuse"
    RESUME = "resume"  # Only under the same configuration: an equal manifest.


class RunFolder:
    """One run's folder at ``path``; every file in it is whole or absent. Made by ``open``.

    ``resumed`` is true when the folder held this very run before.
    """

    def __init__(self, path: Path, *, resumed: bool) -> None:
        self.path = path
        self.resumed = resumed

    @classmethod
    def open(
        cls,
        command: str,
        manifest: Mapping[str, Any],
        *,
        out: Path | None = None,
        existing: ExistingRun = ExistingRun.REFUSE,
        root: Path = Path("runs"),
    ) -> RunFolder:
        """Make the folder of a run and write its ``manifest.json``.

        Without ``out`` a new folder ``root/COMMAND-NNNN`` is made, never an old one. ``out`` must be absent
        or empty, or, with ``ExistingRun.RESUME``, hold an equal manifest. UsageError in one sentence
        otherwise, and nothing is written.
        """
        data = canonical_bytes(dict(manifest)) + b"\n"
        try:
            if out is None:
                folder, resumed = _new_folder(root, command), False
            else:
                folder, resumed = out, _prepare(out, manifest, existing)
            if not resumed:
                write_atomic(folder / MANIFEST, data)
        except OSError as error:
            raise UsageError(
                f"cannot write the output folder {out or root}: {error.strerror}; choose another with --out"
            ) from None
        return cls(folder, resumed=resumed)

    def write_report(self, report: Mapping[str, Any]) -> None:
        """Write ``report.json``: what was found, without clock or path: same records, same bytes."""
        self._write(REPORT, report)

    def write_timing(self, timing: Mapping[str, Any]) -> None:
        """Write ``timing.json``: clocks and durations, which live nowhere else."""
        self._write(TIMING, timing)

    def discard(self) -> None:
        """Remove the files of a run that found nothing, and the folder with them; a resumed run keeps what it held."""
        if self.resumed:
            return
        for path in (*(self.path / name for name in (MANIFEST, REPORT, TIMING)), *self.path.glob("*.jsonl")):
            path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # Somebody else's file in it keeps it.
            self.path.rmdir()

    def records(self, name: str) -> JsonlWriter:
        """Open ``NAME.jsonl`` in the folder for appending."""
        return JsonlWriter(self.path / f"{name}.jsonl")

    def _write(self, name: str, value: Mapping[str, Any]) -> None:
        data = canonical_bytes(dict(value)) + b"\n"
        try:
            write_atomic(self.path / name, data)
        except OSError as error:
            raise UsageError(f"cannot write {self.path / name}: {error.strerror}") from None


def _new_folder(root: Path, command: str) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    for number in itertools.count(1):
        folder = root / f"{command}-{number:04d}"
        try:
            folder.mkdir()
        except FileExistsError:  # Taken, perhaps by a run that started beside this one.
            continue
        return folder
    raise AssertionError("unreachable: the numbers do not end")


def _prepare(out: Path, manifest: Mapping[str, Any], existing: ExistingRun) -> bool:
    """Make ``out`` or check what is in it; true when it holds this run already."""
    if out.exists() and not out.is_dir():
        raise UsageError(f"--out {out} is a file: name a folder that is new or empty")
    out.mkdir(parents=True, exist_ok=True)
    if next(out.iterdir(), None) is None:
        return False
    if existing is ExistingRun.REFUSE:
        raise UsageError(f"--out {out} is not empty: name a folder that is new or empty")
    if not (out / MANIFEST).exists():
        raise UsageError(f"--out {out} is not empty and holds no {MANIFEST}: name a folder that is new or empty")
    held = read_json(out / MANIFEST)
    if not isinstance(held, dict):
        raise UsageError(f"{out / MANIFEST} is not a manifest: name a folder that is new or empty")
    for field in sorted({*held, *manifest}):
        both = field in held and field in manifest
        if not both or canonical_bytes(held[field]) != canonical_bytes(manifest[field]):
            raise UsageError(f"--out {out} holds a run of another configuration ({field} differs): name a new folder")
    return True
