"""Traffic scripts from files: who arrives when, as data.

JSONL, one request a line (or a JSON list of the same objects):

    {"step": 0, "probe": "ID"}                             a probed prompt by its id; its reply is watched
    {"step": 3, "prompt": "...", "max_tokens": 20}         load: text, messages or token_ids, as in a prompts file
    {"step": 5, "token_ids": [1, 2], "cancel_step": 9}     load that is cancelled before step 9

``step`` (default 0) is the engine step before which the request arrives; rows of one step arrive in file order.
Sampling fields are those of a prompts file; a probe's own belong to its prompt. A script that names no probe is
pure load: every probe then arrives at step 0, ahead of it. A probe that is named twice is watched twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detharness.errors import UsageError
from detharness.probes.bench import Bench
from detharness.probes.prompt_files import SOURCES, PromptSource, read_sampling, read_source, sampling_params
from detharness.probes.traffic.generators import Traffic
from detharness.records.canonical import read_json
from detharness.records.jsonl import read_jsonl
from detharness.targets.protocol import Arrival, SamplingParams, ScriptedTarget

LAST_STEP = 100_000  # The engine walks to the last arrival step by step, idle or not.


@dataclass(frozen=True)
class ScriptRow:
    """One arrival: a probe by id, or load with its own prompt."""

    step: int
    cancel_step: int | None
    probe_id: str | None
    source: PromptSource | None
    sampling: Mapping[str, Any]
    where: str


def read_script(path: Path, probe_ids: Sequence[str]) -> list[ScriptRow]:
    """Read a script; UsageError names file and line (or entry) for anything it cannot use."""
    if path.suffix == ".json":
        entries = read_json(path)
        if not isinstance(entries, list) or any(not isinstance(entry, dict) for entry in entries):
            raise UsageError(f"{path}: a JSON script must be a list of objects")
        rows = [(entry, f"{path}, entry {number}") for number, entry in enumerate(entries, start=1)]
    else:
        rows = [(row.value, f"{path}, line {row.line}") for row in read_jsonl(path)]
    if not rows:
        raise UsageError(f"{path} holds no request: give it at least one line")
    return [_script_row(row, where, probe_ids) for row, where in rows]


def _script_row(row: Mapping[str, Any], where: str, probe_ids: Sequence[str]) -> ScriptRow:
    step = _step(row, "step", 0, where)
    cancel = _step(row, "cancel_step", None, where)
    assert step is not None
    if cancel is not None and cancel <= step:
        raise UsageError(f"{where}: cancel_step must come after step {step}, got {cancel}")
    if "probe" not in row:
        sampling = read_sampling(row, ("step", "cancel_step", *SOURCES, "probe"), where)
        return ScriptRow(step, cancel, None, read_source(row, where), sampling, where)
    extra = sorted(set(row) - {"step", "cancel_step", "probe"})
    if extra:
        raise UsageError(f"{where}: a probe row takes step and cancel_step only, found {extra[0]!r}")
    if row["probe"] not in probe_ids:
        raise UsageError(f"{where}: no prompt has the id {row['probe']!r}: known are {', '.join(probe_ids)}")
    return ScriptRow(step, cancel, row["probe"], None, {}, where)


def _step(row: Mapping[str, Any], name: str, default: int | None, where: str) -> int | None:
    value = row.get(name, default)
    if value is None and name not in row:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= LAST_STEP:
        raise UsageError(f"{where}: {name} must be a whole number from 0 to {LAST_STEP}, got {value!r}")
    return value


@dataclass(frozen=True)
class Script:
    """A script with its load tokenized: ready to be combined with any bench."""

    rows: tuple[ScriptRow, ...]
    load: tuple[tuple[tuple[int, ...], SamplingParams] | None, ...]

    def traffic(self, bench: Bench) -> Traffic:
        """Arrivals in order of step, then of file; a probe's later appearances are called ``ID~1``, ``ID~2``, ..."""
        probes = {probe.id: probe for probe in bench.probes}
        arrivals: list[Arrival] = []
        watched: dict[str, str] = {}
        if all(row.probe_id is None for row in self.rows):
            arrivals += bench.all_probes(None)
            watched = {probe.id: probe.id for probe in bench.probes}
        times: dict[str, int] = {}
        for index, (row, load) in enumerate(zip(self.rows, self.load, strict=True)):
            if load is not None:
                arrivals.append(Arrival(row.step, f"~load-{index}", *load, cancel_step=row.cancel_step))
                continue
            assert row.probe_id is not None
            count = times.get(row.probe_id, 0)
            times[row.probe_id] = count + 1
            name = row.probe_id if count == 0 else f"{row.probe_id}~{count}"
            arrival = bench.arrival(probes[row.probe_id], step=row.step, request_id=name)
            arrivals.append(
                Arrival(
                    arrival.step, name, arrival.token_ids, arrival.sampling, row.cancel_step, arrival.capture_logits
                )
            )
            watched[name] = row.probe_id
        return Traffic(sorted(arrivals, key=lambda arrival: arrival.step), watched)


def tokenize_script(rows: Sequence[ScriptRow], target: ScriptedTarget, defaults: SamplingParams, seed: int) -> Script:
    """Tokenize a script's load; UsageError where a request does not fit the model's context."""
    limit = target.context_length
    load: list[tuple[tuple[int, ...], SamplingParams] | None] = []
    for index, row in enumerate(rows):
        if row.source is None:
            load.append(None)
            continue
        ids = row.source.tokens(target)
        params = sampling_params({"seq_seed": seed + index, **row.sampling}, defaults, row.where)
        if len(ids) + params.max_tokens > limit:
            raise UsageError(
                f"{row.where}: {len(ids)} prompt tokens and a reply of {params.max_tokens} do not fit the model's "
                f"context of {limit}: shorten the prompt or lower max_tokens"
            )
        load.append((ids, params))
    return Script(tuple(rows), tuple(load))
