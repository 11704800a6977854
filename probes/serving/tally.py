"""What the rows of a server's run add up to, row by row, in memory that grows with distinct outputs alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from detharness.probes.findings import moved

Row = Mapping[str, Any]
_CLASSES = ("confident", "near_tie", "tie")  # Firmest first.


@dataclass
class Group:
    """Trials of one prompt in one axis, role and level. ``firsts``: (first token that differs, tokens compared)."""

    trials: int = 0
    moved: int = 0
    moved_tokens: int = 0
    confounded: int = 0
    not_exercised: int = 0
    exercised: dict[str, Any] = field(default_factory=dict)
    outputs: Counter[int] = field(default_factory=Counter)
    first_token: int | None = None
    first_logprob: int | None = None
    max_logprob_gap: float | None = None

    def add(self, row: Row) -> None:
        """Count one trial; one that proves nothing of its axis is counted apart."""
        if not row["exercised"]:
            self.not_exercised += 1
            return
        if row["confounded"]:
            self.confounded += 1
            return
        comparison = row["comparison"]
        self.trials += 1
        self.moved += moved(comparison)
        self.moved_tokens += comparison["first_token"] is not None
        self.first_token = least(self.first_token, comparison["first_token"])
        self.first_logprob = least(self.first_logprob, comparison["first_logprob"])
        self.max_logprob_gap = greatest(self.max_logprob_gap, comparison["max_logprob_gap"])
        if row["output"] is not None:
            self.outputs[row["output"]] += 1
        for name, value in row["exercised"].items():
            if isinstance(value, list):
                self.exercised[name] = sorted({*self.exercised.get(name, []), *value})
            else:
                self.exercised[name] = self.exercised.get(name, 0) + value


@dataclass
class PromptTally:
    """One prompt over all of its replies without a fresh prefix, the reference included."""

    reference: Row | None = None
    outputs: Counter[int] = field(default_factory=Counter)
    texts: dict[int, str] = field(default_factory=dict)
    parts_at: dict[int, int | None] = field(default_factory=dict)
    moved: int = 0
    first_token: int | None = None
    first_position: int | None = None
    first_logprob: int | None = None
    max_logprob_gap: float | None = None
    margin: float | None = None
    classes: set[str] = field(default_factory=set)

    def add(self, row: Row) -> None:
        """Count one reply that was compared with the reference."""
        comparison = row["comparison"]
        self.moved += moved(comparison)
        self.first_token = least(self.first_token, comparison["first_token"])
        self.first_position = least(self.first_position, comparison["position"])
        self.first_logprob = least(self.first_logprob, comparison["first_logprob"])
        self.max_logprob_gap = greatest(self.max_logprob_gap, comparison["max_logprob_gap"])
        self.margin = greatest(self.margin, comparison["margin"])
        if comparison["divergence_class"] is not None:
            self.classes.add(comparison["divergence_class"])
        self.outputs[row["output"]] += 1
        self.parts_at.setdefault(row["output"], comparison["first_token"])
        if row["text"] is not None:
            self.texts[row["output"]] = row["text"]

    @property
    def firmest(self) -> str | None:
        """The firmest class among its divergences."""
        return next((name for name in _CLASSES if name in self.classes), None)


@dataclass
class Tally:
    """Everything that the report is made of."""

    prompts: dict[str, PromptTally]
    capabilities: list[dict[str, Any]] = field(default_factory=list)
    groups: dict[tuple[str | None, str, str, str], Group] = field(default_factory=dict)
    survival: Counter[tuple[int | None, int]] = field(default_factory=Counter)
    compared: int = 0
    moved: int = 0
    moved_tokens: int = 0
    tokens: int = 0
    non_finite: int = 0
    requests: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    messages: dict[str, str] = field(default_factory=dict)
    fingerprints: dict[str, None] = field(default_factory=dict)
    divergences: dict[tuple[Any, ...], dict[str, Any]] = field(default_factory=dict)
    located: dict[tuple[str, int], Row] = field(default_factory=dict)
    end: Row | None = None

    def add(self, row: Row) -> None:
        """Take one row of ``trials.jsonl``."""
        kind = row["kind"]
        if kind in ("reference", "trial", "load", "error"):
            self.requests += 1
        if kind in ("reference", "trial") and row["fingerprint"] is not None:
            self.fingerprints.setdefault(row["fingerprint"])
        if kind == "capability":
            self.capabilities.append({name: row[name] for name in ("name", "status", "detail")})
        elif kind == "reference":
            prompt = self.prompts[row["prompt"]]
            prompt.reference = row
            prompt.outputs[row["output"]] += 1
            prompt.texts[row["output"]] = row["text"]
            prompt.parts_at[row["output"]] = None
        elif kind == "trial":
            self._trial(row)
        elif kind == "error":
            self.errors[row["error"]] += 1
            self.messages.setdefault(row["error"], row["message"])
        elif kind == "located":
            self.located[row["prompt"], row["output"]] = row
        elif kind == "end":
            self.end = row

    def _trial(self, row: Row) -> None:
        key = (row["axis"], row["role"], row["level"], row["prompt"])
        self.groups.setdefault(key, Group()).add(row)
        comparison = row["comparison"]
        if row["output"] is not None:
            self.prompts[row["prompt"]].add(row)
        elif not row["exercised"] and not moved(comparison):
            return  # Nothing is known of its cache, and nothing moved.
        if comparison["tokens"] > 0:
            self.compared += 1
            self.moved += moved(comparison)
            self.moved_tokens += comparison["first_token"] is not None
            self.tokens += comparison["tokens"]
            self.non_finite += comparison["non_finite"]
            self.survival[comparison["first_token"], comparison["tokens"]] += 1
        if comparison["first_token"] is not None:
            self._divergence(row)

    def _divergence(self, row: Row) -> None:
        blamed = bool(row["exercised"]) and not row["confounded"]
        key = (row["prompt"], row["axis"], blamed, row["level"], row["output"], row["comparison"]["first_token"])
        kept = self.divergences.setdefault(key, {"row": row, "count": 0, "context": None})
        kept["count"] += 1
        kept["context"] = kept["context"] or row["context"]


def least(left: int | None, right: int | None) -> int | None:
    """The smaller of what is known."""
    return min((value for value in (left, right) if value is not None), default=None)


def greatest(left: float | None, right: float | None) -> float | None:
    """The larger of what is known."""
    return max((value for value in (left, right) if value is not None), default=None)
