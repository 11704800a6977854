"""When requests arrive: open-loop schedules, which do not wait for replies, and script files with times."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from detharness.errors import UsageError
from detharness.probes.prompt_files import SOURCES, read_source, refuse_special_file
from detharness.records.jsonl import read_jsonl

LATEST = 3600.0


def poisson(rate: float, count: int, random: Random) -> list[float]:
    """``count`` arrival times in seconds from 0 on, ascending, ``rate`` a second on average: a Poisson process."""
    return list(_sums(random.expovariate(rate) for _ in range(count)))


def _sums(gaps: Iterator[float]) -> Iterator[float]:
    now = 0.0
    for gap in gaps:
        now += gap
        yield now


@dataclass(frozen=True)
class ScriptRow:
    """One arrival of a script file: a probed prompt by its id, or load as (kind, value) of a prompt."""

    at: float
    probe: str | None
    load: tuple[str, Any] | None
    max_tokens: int | None


def read_script(path: Path, ids: Sequence[str]) -> list[ScriptRow]:
    """Rows ``{"at": seconds, "probe": id}`` or ``{"at": seconds, "prompt" | "messages" | "token_ids", "max_tokens"}``.

    UsageError names file and line.
    """
    refuse_special_file(path)
    rows = [_row(row.value, ids, f"{path}, line {row.line}") for row in read_jsonl(path)]
    if not rows:
        raise UsageError(f"{path} holds no arrival: give it at least one line")
    return sorted(rows, key=lambda row: row.at)


def _row(row: Mapping[str, Any], ids: Sequence[str], where: str) -> ScriptRow:
    known = ("at", "probe", "max_tokens", *SOURCES)
    for name in row:
        if name not in known:
            raise UsageError(f"{where}: unknown field {name!r}: known are {', '.join(known)}")
    at = row.get("at", 0.0)
    if type(at) not in (int, float) or not math.isfinite(at) or not 0 <= at <= LATEST:
        raise UsageError(f"{where}: at must be seconds from 0 to {LATEST:g}")
    limit = row.get("max_tokens")
    if limit is not None and (type(limit) is not int or not 1 <= limit <= 2**20):
        raise UsageError(f"{where}: max_tokens must be a whole number of at least 1")
    if "probe" in row:
        if row["probe"] not in ids:
            raise UsageError(f"{where}: no prompt has the id {row['probe']!r}: known are {', '.join(ids)}")
        if limit is not None:
            raise UsageError(f"{where}: a probed prompt has its own max_tokens: remove the field")
        return ScriptRow(float(at), row["probe"], None, None)
    source = read_source(row, where)
    return ScriptRow(float(at), None, (source.kind, source.value), limit)
