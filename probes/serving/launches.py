"""A launch matrix: one probe against several launches of one server, one component of it changed at a time.

Each launch gets a run folder of its own below the matrix's, so any two are read together by ``detharness diff``; the
matrix itself says of each launch what was changed, what moved in it, and whether it answers as the first one does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from detharness.errors import DetharnessError, UsageError
from detharness.probes.prompt_files import refuse_special_file
from detharness.probes.serving.report import exit_code
from detharness.probes.serving.runner import Outcome
from detharness.probes.serving.settings import ServerSettings
from detharness.records.jsonl import read_jsonl
from detharness.records.run_folder import RunFolder

SCHEMA = "detharness.launches/1"
BASE = "base"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_FIELDS = ("name", "url", "model", "changed")


@dataclass(frozen=True)
class Launch:
    """One launch. changed: the component that differs from the first launch, in words; None for the first itself."""

    name: str
    url: str
    model: str
    changed: str | None


def read_launches(path: Path, base_url: str, model: str) -> list[Launch]:
    """The launch at ``base_url`` first, then those of the file: ``{"name", "url", "changed", "model"?}`` a line.

    UsageError names file and line.
    """
    refuse_special_file(path)
    launches = [Launch(BASE, base_url, model, None)]
    for row in read_jsonl(path):
        where = f"{path}, line {row.line}"
        for name in row.value:
            if name not in _FIELDS:
                raise UsageError(f"{where}: unknown field {name!r}: known are {', '.join(_FIELDS)}")
        values = {name: _text(row.value.get(name), name, where) for name in ("name", "url", "changed")}
        values["model"] = _text(row.value.get("model", model), "model", where)
        if not _NAME.fullmatch(values["name"]) or any(values["name"] == other.name for other in launches):
            raise UsageError(f"{where}: name must be new, of up to 64 letters, digits, dots, dashes or underscores")
        launches.append(Launch(**values))
    if len(launches) == 1:
        raise UsageError(f"{path} holds no launch: give it at least one line")
    return launches


def _text(value: object, name: str, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise UsageError(f"{where}: {name} must be text, and name, url and changed are needed")
    return value


def run_launches(
    launches: Sequence[Launch], settings: ServerSettings, nonce: str, run: Callable[[Launch, ServerSettings], Outcome]
) -> tuple[Path, dict[str, Any], int]:
    """Probe every launch in turn; folder, report and exit code of the matrix.

    A launch that cannot be probed is a row with its sentence, and the others go on; the first one must be there.
    nonce: one for all, so that every launch is asked the same.
    """
    config = [{"name": one.name, "url": one.url, "model": one.model, "changed": one.changed} for one in launches]
    folder = RunFolder.open("launches", {"schema": SCHEMA, "kind": "launches", "launches": config}, out=settings.out)
    outcomes: dict[str, Outcome] = {}
    errors: dict[str, str] = {}
    for launch in launches:
        own = replace(settings, model=launch.model, nonce=nonce, out=folder.path / launch.name)
        try:
            outcomes[launch.name] = run(launch, own)
        except DetharnessError as error:
            if launch.name == BASE:
                folder.discard()
                raise
            errors[launch.name] = str(error)
            continue
        if outcomes[launch.name].interrupted:
            break
    reports = {name: outcome.report for name, outcome in outcomes.items()}
    report = build_matrix(config, reports, errors)
    folder.write_report(report)
    interrupted = any(outcome.interrupted for outcome in outcomes.values())
    codes = [exit_code(one, interrupted=False) for one in reports.values()] + [3] * (len(launches) - len(reports))
    code = 130 if interrupted else next((code for code in (1, 3) if code in codes), 0)
    return folder.path, report, code


def build_matrix(
    launches: Sequence[Mapping[str, Any]], reports: Mapping[str, Mapping[str, Any]], errors: Mapping[str, str]
) -> dict[str, Any]:
    """A row for every launch: its verdict, its findings, and for each prompt whether its solo reply is the first's."""
    base = _solo_replies(reports[BASE])
    rows = []
    for launch in launches:
        report = reports.get(launch["name"])
        if report is None:
            rows.append(
                {**launch, "verdict": "not_tested", "axes": None, "replies": None, "error": errors.get(launch["name"])}
            )
            continue
        own = _solo_replies(report)
        rows.append(
            {
                **launch,
                "verdict": report["verdict"],
                "axes": {name: axis["status"] for name, axis in report["axes"].items()},
                "replies": {
                    "compared": sum(name in own for name in base),
                    "as_base": sum(own.get(name) == text for name, text in base.items()),
                    "others": [name for name, text in base.items() if name in own and own[name] != text],
                },
                "error": None,
            }
        )
    return {"schema": SCHEMA, "kind": "launches", "launches": rows}


def _solo_replies(report: Mapping[str, Any]) -> dict[str, str]:
    prompts = report["arms"][0]["prompts"]
    return {prompt["id"]: prompt["completions"][0]["text"] for prompt in prompts if prompt["completions"]}
