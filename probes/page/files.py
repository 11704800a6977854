"""The files that a person asks for beside a run's folder: checked before the run, written whole after it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detharness.errors import UsageError
from detharness.probes.page.junit import junit_xml
from detharness.probes.page.markdown import markdown_summary
from detharness.records.atomic import check_writable, write_atomic


@dataclass(frozen=True)
class SummaryFiles:
    """Where the summaries of a run go; None: nowhere."""

    junit: Path | None = None
    markdown: Path | None = None

    def check(self) -> None:
        """UsageError, before anything runs, for a file that could not be written at the end."""
        for option, path in (("--junit", self.junit), ("--markdown", self.markdown)):
            if path is not None:
                check_writable(path, option)
        if self.junit is not None and self.markdown is not None and self.junit.resolve() == self.markdown.resolve():
            raise UsageError(f"--junit and --markdown both name {self.junit}: name two files")

    def write(self, report: Mapping[str, Any]) -> None:
        """Write what was asked for; UsageError where the disk refuses it now."""
        if self.junit is not None:
            write_file(self.junit, junit_xml(report))
        if self.markdown is not None:
            write_file(self.markdown, markdown_summary(report).encode())


def write_file(path: Path, data: bytes) -> None:
    """``write_atomic`` with its error as a sentence."""
    try:
        write_atomic(path, data)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None
