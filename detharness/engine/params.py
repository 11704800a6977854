"""What a caller may ask of the engine: sampling parameters, the engine's configuration, and its policies.

Pure data, no torch. Values the engine does not support are refused here, by name, never dropped.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import Enum
from typing import Any

from detharness.errors import RequestError, UsageError

_INT64_MAX = 2**63 - 1  # What a sampling row holds.
MAX_SEED = _INT64_MAX

DTYPES = ("fp32", "bf16", "bf16w")
"""bf16w: weights of linear layers and embedding in bf16; arithmetic, activations and KV pages in fp32."""


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How one request is sampled and when it stops.

    temperature 0 is greedy (argmax, ties to the lowest id). top_k 0, top_p 1, min_p 0 switch the mask off.
    seq_seed: key of the counter noise; None draws one once, records it and reports it. n: samples per prompt,
    each with its own sample index. logprobs / prompt_logprobs: how many alternatives to report beside the chosen
    token (0 = the chosen one only), None = none. stop: strings that end the text (not included in it).
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seq_seed: int | None = None
    n: int = 1
    max_tokens: int = 16
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    logprobs: int | None = None
    processed_logprobs: bool = False
    prompt_logprobs: int | None = None

    def __post_init__(self) -> None:
        for name in ("temperature", "top_p", "min_p"):
            value = getattr(self, name)
            # A whole number is finite, and may be too large for isfinite to look at.
            finite = isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))
            if isinstance(value, bool) or not finite:
                raise RequestError(f"{name} must be a finite number, got {value!r}")
        if not 0.0 <= self.temperature <= 100.0:
            raise RequestError(f"temperature must be between 0 and 100, got {self.temperature!r}")
        if not 0.0 < self.top_p <= 1.0:
            raise RequestError(f"top_p must be above 0 and at most 1, got {self.top_p!r}")
        if not 0.0 <= self.min_p <= 1.0:
            raise RequestError(f"min_p must be between 0 and 1, got {self.min_p!r}")
        self._check_int("top_k", 0, _INT64_MAX)
        self._check_int("n", 1, 1024)
        self._check_int("max_tokens", 1, None)
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                self._check_int(name, 0, 1000)
        if self.seq_seed is not None:
            self._check_int("seq_seed", 0, MAX_SEED)
        for name in ("ignore_eos", "processed_logprobs"):
            if not isinstance(getattr(self, name), bool):
                raise RequestError(f"{name} must be true or false, got {getattr(self, name)!r}")
        if self.processed_logprobs and self.logprobs is None:
            raise RequestError("processed_logprobs stand beside logprobs: ask for logprobs too")
        object.__setattr__(self, "stop", self._sequence("stop", str))
        object.__setattr__(self, "stop_token_ids", self._sequence("stop_token_ids", int))
        if any(text == "" for text in self.stop):
            raise RequestError("a stop string must not be empty")
        if any(token < 0 for token in self.stop_token_ids):
            raise RequestError(f"stop_token_ids must be 0 or more, got {min(self.stop_token_ids)}")

    def _check_int(self, name: str, low: int, high: int | None) -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, int):
            raise RequestError(f"{name} must be a whole number, got {value!r}")
        if value < low or (high is not None and value > high):
            limit = f"at least {low}" if high is None else f"between {low} and {high}"
            raise RequestError(f"{name} must be {limit}, got {value}")

    def _sequence(self, name: str, kind: type) -> tuple[Any, ...]:
        value = getattr(self, name)
        if isinstance(value, kind):
            value = (value,)
        if not isinstance(value, list | tuple) or any(
            not isinstance(item, kind) or isinstance(item, bool) for item in value
        ):
            raise RequestError(f"{name} must be a list of {kind.__name__}, got {value!r}")
        return tuple(value)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], defaults: SamplingParams | None = None) -> SamplingParams:
        """Build from outside data over ``defaults``; a field the engine does not know is refused by name."""
        known = {field.name for field in fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise RequestError(f"unsupported sampling field {unknown[0]!r}: supported are {', '.join(sorted(known))}")
        return cls(**{**(asdict(defaults) if defaults else {}), **values})


class MemoryPolicy(Enum):
    """What happens when the block pool runs out."""

    RECOMPUTE = "recompute"  # Preempt the newest request, free its blocks, prefill it again later.
    RESERVE = "reserve"  # Admit a request only when blocks for its whole budget are free; never preempts.


class PrefixCaching(Enum):
    """Whether full pages are kept and found again by their hash chain."""

    OFF = "off"
    ON = "on"


class PagePlacement(Enum):
    """The order in which free pages are handed out."""

    ASCENDING = "ascending"
    PERMUTED = "permuted"  # A permutation keyed by ``placement_seed``: neighbours in a sequence lie far apart.


class FreePages(Enum):
    """What a page holds while nobody owns it, and a slot before it is written."""

    KEEP = "keep"  # Whatever was there: real engines.
    NAN = "nan"  # Poison: a read of a slot that a correct engine never gathers becomes visible.


_POLICIES: Mapping[str, type[Enum]] = {
    "memory_policy": MemoryPolicy,
    "prefix_caching": PrefixCaching,
    "page_placement": PagePlacement,
    "free_pages": FreePages,
}


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """The engine's configuration; everything here may change a schedule, and under row purity never a bit.

    num_blocks: KV pages in the pool; None sizes it for ``max_running`` sequences of the model's context within
    2 GiB and records the number. max_step_tokens: token budget of one step (prefill chunks and decodes together).
    threads: torch's intra-op threads while stepping; None leaves the process setting.
    """

    dtype: str = "fp32"
    num_blocks: int | None = None
    page_size: int = 16
    max_step_tokens: int = 512
    max_running: int = 64
    memory_policy: MemoryPolicy = MemoryPolicy.RECOMPUTE
    prefix_caching: PrefixCaching = PrefixCaching.OFF
    page_placement: PagePlacement = PagePlacement.ASCENDING
    placement_seed: int = 0
    free_pages: FreePages = FreePages.KEEP
    threads: int | None = None

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise UsageError(f"unknown dtype {self.dtype!r}: use {', '.join(map(repr, DTYPES))}")
        for name in ("num_blocks", "page_size", "max_step_tokens", "max_running", "threads"):
            value = getattr(self, name)
            if value is None and name in ("num_blocks", "threads"):
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise UsageError(f"{name} must be a whole number of at least 1, got {value!r}")
        if isinstance(self.placement_seed, bool) or not isinstance(self.placement_seed, int):
            raise UsageError(f"placement_seed must be a whole number, got {self.placement_seed!r}")
        for name, kind in _POLICIES.items():
            if not isinstance(getattr(self, name), kind):
                members = ", ".join(f"{kind.__name__}.{member.name}" for member in kind)
                raise UsageError(f"{name} must be one of {members}, got {getattr(self, name)!r}")

    def as_record(self) -> dict[str, Any]:
        """Plain values for manifests and reports."""
        return {
            field.name: value.value if isinstance(value := getattr(self, field.name), Enum) else value
            for field in fields(self)
        }
