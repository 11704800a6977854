"""Replies of a judge, kept: a judge may answer differently next time, so that grading again must not ask again."""

from __future__ import annotations

from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

from detharness.errors import UsageError
from detharness.eval.reading import lines_of, pieces_of
from detharness.records.digests import sha256_value

SCHEMA = "detharness.judge/1"
JUDGE = "judge"  # NAME of NAME.jsonl in the folder of a grade.

_JUDGE_TYPES = {"model": str, "params": dict, "template_id": str, "template_digest": str}
_ROW_TYPES = {
    "row_digest": str,
    "response_digest": str,
    "repeat": int,
    "reply": str | None,
    "finish_reason": str | None,
}


@dataclass(frozen=True)
class JudgeIdentity:
    """Who judges, and how it is asked. params: what is sent beside the prompt, plain JSON."""

    model: str
    params: dict[str, Any]
    template_id: str
    template_digest: str

    def describe(self) -> dict[str, Any]:
        """As plain JSON, for fingerprints and cache rows."""
        return {
            "model": self.model,
            "params": self.params,
            "template_id": self.template_id,
            "template_digest": self.template_digest,
        }

    @property
    def digest(self) -> str:
        """SHA-256 of the description."""
        return sha256_value(self.describe())


@dataclass(frozen=True)
class JudgeKey:
    """What a reply answers: this judge on this response to this data row, for the ``repeat``-th time from 0."""

    judge: str
    row_digest: str
    response_digest: str
    repeat: int


@dataclass(frozen=True)
class CachedReply:
    """A judge's raw reply."""

    text: str | None
    finish_reason: str | None


@dataclass
class JudgeCache:
    """Replies by key, and the judges they came from by digest."""

    replies: dict[JudgeKey, CachedReply] = field(default_factory=dict)
    judges: dict[str, JudgeIdentity] = field(default_factory=dict)

    def only_judge(self, path: Path, model: str | None) -> JudgeIdentity:
        """The judge of the file; UsageError where there is none, or several and ``model`` does not say which."""
        fitting = [judge for judge in self.judges.values() if model is None or judge.model == model]
        if len(fitting) == 1:
            return fitting[0]
        if not fitting:
            asked = "" if model is None else f" of the model {model!r}"
            raise UsageError(f"{path} holds no judge's reply{asked}, so there is nothing to replay")
        names = ", ".join(sorted({repr(judge.model) for judge in fitting}))
        if len({judge.model for judge in fitting}) > 1:
            raise UsageError(f"{path} holds replies of several judges ({names}): choose one with --judge-model")
        raise UsageError(
            f"{path} holds replies of {names} under several templates or parameters: keep those of one in a file"
        )


def cache_row(judge: JudgeIdentity, key: JudgeKey, reply: CachedReply) -> dict[str, Any]:
    """The JSON row of one reply, with a digest over all of it."""
    row = {
        "schema": SCHEMA,
        "judge": judge.describe(),
        "row_digest": key.row_digest,
        "response_digest": key.response_digest,
        "repeat": key.repeat,
        "reply": reply.text,
        "finish_reason": reply.finish_reason,
    }
    return {**row, "digest": sha256_value(row)}


def load_cache(path: Path) -> JudgeCache:
    """Read a cache file. A torn last line, what a crash leaves, is skipped: its question is open again.

    UsageError names file and line of any other line that is no reply, was edited, or contradicts an earlier one.
    """
    cache = JudgeCache()
    lines: dict[JudgeKey, int] = {}
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read the judge cache {path}: {error.strerror}") from None
    for number, _, line in lines_of(BytesIO(data[: data.rfind(b"\n") + 1])):
        where = f"{path}, line {number}"
        try:
            (piece, *more) = pieces_of(line)
        except UsageError as error:
            raise UsageError(f"{where}: {error}") from None
        if piece.value is None or more:
            raise UsageError(f"{where}: this is not one reply of a judge ({piece.problem}): remove the line")
        judge, key, reply = _reply_of(piece.value, where)
        if key in lines and cache.replies[key] != reply:
            raise UsageError(f"{where} contradicts line {lines[key]}: one judge, one response, two replies: remove one")
        lines[key] = number
        cache.judges[judge.digest] = judge
        cache.replies[key] = reply
    return cache


def _reply_of(row: dict[str, Any], where: str) -> tuple[JudgeIdentity, JudgeKey, CachedReply]:
    if row.get("schema") != SCHEMA:
        raise UsageError(f"{where}: the field 'schema' must be {SCHEMA!r}: this is no reply of a judge")
    try:
        digest = sha256_value({name: value for name, value in row.items() if name != "digest"})
    except ValueError as error:
        raise UsageError(f"{where}: {error}: remove the line") from None
    if row.get("digest") != digest:
        raise UsageError(f"{where}: the reply does not fit its digest: it was edited, so remove the line")
    described = row.get("judge")
    if not _has_fields(row, _ROW_TYPES) or not isinstance(described, dict) or not _has_fields(described, _JUDGE_TYPES):
        raise UsageError(f"{where}: a field of the reply is missing or of another type: remove the line")
    judge = JudgeIdentity(**{name: described[name] for name in _JUDGE_TYPES})
    key = JudgeKey(judge.digest, row["row_digest"], row["response_digest"], row["repeat"])
    return judge, key, CachedReply(row["reply"], row["finish_reason"])


def _has_fields(row: dict[str, Any], types: dict[str, Any]) -> bool:
    return all(name in row and isinstance(row[name], kind) for name, kind in types.items())
