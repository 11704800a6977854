"""What was asked of a server's probe, checked before anything is sent, and the plan of requests that follows."""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Literal

from detharness.errors import UsageError
from detharness.probes.prompt_files import PromptRow, PromptSource
from detharness.probes.serving import plays
from detharness.probes.serving.arrivals import ScriptRow, read_script
from detharness.probes.serving.capabilities import MOST_REQUESTS
from detharness.probes.serving.plays import AXES, Play, Workshop
from detharness.probes.serving.prompts import Prompt, load_prompts, prompts_of
from detharness.probes.settings import SCHEMA, check_out, printable
from detharness.records.digests import sha256_file
from detharness.records.environment import environment_fingerprint
from detharness.targets.serving import Api

MOST_LOCATED = 8
"""Divergences that the server's tokenizer and scores are asked about, with at most so many requests each:"""
REQUESTS_EACH = 5
DESCRIPTION = 1  # Of the server by itself: its list of models.

PRESET_RUNS, PRESET_TOKENS, PRESET_CONCURRENCY = 1000, 1000, 32
_PRESET_PROMPT = "Tell me about Richard Feynman"  # The question that the published study asked.

Traffic = Literal["concurrency", "needle", "open-loop", "repeat", "shared-prefix"]
TRAFFIC = ("concurrency", *plays.TRAFFIC)
_DEFAULT_TRAFFIC = ("concurrency", "needle", "open-loop", "shared-prefix")


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """The options of ``detharness probe`` on a server, as they were given; None means the default choice.

    nonce: hexadecimal, makes prompts that no cache holds; drawn anew for every run, and recorded.
    """

    model: str
    api: str = "chat"
    prompts: Path | None = None
    traffic: str | None = None
    axes: str | None = None
    trials: int = 3
    max_tokens: int | None = None
    temperature: float = 0.0
    seed: int = 0
    preset: str | None = None
    concurrency: str | None = None
    rate: float = 4.0
    max_requests: int | None = None
    max_seconds: float | None = None
    out: Path | None = None
    nonce: str | None = None


@dataclass(frozen=True)
class ServerPlan:
    """A probe of a server, ready to run: nothing sent, nothing written. plays: in the order of playing."""

    settings: ServerSettings
    api: Api
    axes: tuple[str, ...]
    asked_axes: tuple[str, ...] | None
    prompts: tuple[Prompt, ...]
    plays: tuple[Play, ...]
    nonce: str
    effective_config: dict[str, Any]

    @property
    def most_requests(self) -> int:
        """The most requests that are sent where none has to be repeated and no budget ends the run before."""
        return DESCRIPTION + MOST_REQUESTS + sum(len(play.asks) for play in self.plays) + MOST_LOCATED * REQUESTS_EACH

    def manifest(self, target: dict[str, Any]) -> dict[str, Any]:
        """What was asked, after defaults: no clock, no key, no header's value."""
        return {
            "schema": SCHEMA,
            "kind": "server",
            "command": "probe",
            "target": target,
            "prompts": [prompt.as_record() for prompt in self.prompts],
            "plays": [play.as_record() for play in self.plays],
            "effective_config": self.effective_config,
            "environment": environment_fingerprint(),
            "amplified": False,
        }


def prepare(settings: ServerSettings) -> ServerPlan:
    """Check every option and build every play; UsageError in one sentence."""
    api = _api(settings.api)
    asked = _axes(settings.axes)
    _check_numbers(settings)
    if settings.preset not in (None, "feynman"):
        raise UsageError(f"unknown preset {settings.preset!r} in --preset: use feynman")
    for option, value in (("--traffic", settings.traffic), ("--axes", settings.axes)):
        if settings.preset is not None and value is not None:
            raise UsageError(f"--preset {settings.preset} says what is played: leave {option} out")
    check_out(settings.out)
    prompts = _prompts(settings, api)
    shop = Workshop(
        api=api,
        prompts=prompts,
        max_tokens=_max_tokens(settings),
        seed=settings.seed,
        nonce=settings.nonce or secrets.token_hex(4),
        rate=settings.rate,
        concurrency=_concurrency(settings),
    )
    script = _script(settings, prompts)
    axes = asked or (AXES if settings.traffic is None and settings.preset is None else ("run_to_run", "co_batching"))
    return ServerPlan(
        settings=settings,
        api=api,
        axes=axes,
        asked_axes=asked,
        prompts=prompts,
        plays=_plays(settings, shop, axes, script),
        nonce=shop.nonce,
        effective_config=_effective(settings, shop, asked),
    )


def _plays(
    settings: ServerSettings, shop: Workshop, axes: Sequence[str], script: Sequence[ScriptRow] | None
) -> tuple[Play, ...]:
    """Warm-up and the solo baseline first; then loads, cache states and further solo replies in random order."""
    baseline = [plays.warm_up(shop), plays.solo(shop, "solo", settings.trials + 1)]
    if settings.preset is not None:
        return (*baseline, plays.many_runs(shop, PRESET_RUNS, max(shop.concurrency)))
    names = (settings.traffic,) if settings.traffic is not None else _DEFAULT_TRAFFIC
    rest: list[Play] = []
    for number in range(settings.trials):
        rest.append(plays.solo(shop, f"solo/{number}", 1))
        if "co_batching" in axes and script is not None:
            rest.append(plays.scripted(shop, script, number))
        elif "co_batching" in axes:
            if "concurrency" in names:
                rest += [plays.sweep(shop, limit, number) for limit in shop.concurrency]
            rest += [build(shop, number) for name, build in plays.TRAFFIC.items() if name in names]
        if "prefix_cache" in axes and plays.long_prompts(shop.prompts):
            rest.append(plays.cache_states(shop, number))
    Random(f"{settings.seed}/order").shuffle(rest)
    return tuple(play for play in (*baseline, *rest) if play.asks)


def _api(text: str) -> Api:
    if text == "chat":
        return "chat"
    if text == "completions":
        return "completions"
    raise UsageError(f"unknown API {text!r} in --api: use chat or completions")


def _axes(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in (*AXES, "all"):
            raise UsageError(f"unknown axis {name!r} in --axes: a server has {', '.join(AXES)}, or all")
    return AXES if "all" in names else tuple(axis for axis in AXES if axis in names)


def _check_numbers(settings: ServerSettings) -> None:
    for option, value, low, high in (
        ("--trials", settings.trials, 1, 1000),
        ("--max-tokens", settings.max_tokens, 2, 2**20),
        ("--seed", settings.seed, 0, 2**62),
        ("--max-requests", settings.max_requests, 1, None),
    ):
        if value is not None and value < low:
            raise UsageError(f"{option} must be at least {low}, got {value}")
        if value is not None and high is not None and value > high:
            raise UsageError(f"{option} must be at most {high}, got {value}")
    for option, number, largest in (("--rate", settings.rate, 10_000), ("--max-seconds", settings.max_seconds, 1e9)):
        if number is not None and not (math.isfinite(number) and 0 < number <= largest):
            raise UsageError(f"{option} must be above 0 and at most {largest:g}, got {number}")
    if not (math.isfinite(settings.temperature) and 0 <= settings.temperature <= 100):
        raise UsageError(f"--temperature must be between 0 and 100, got {settings.temperature}")
    if settings.preset is not None and settings.temperature:
        raise UsageError("the preset asks at temperature 0: leave --temperature out")


def _concurrency(settings: ServerSettings) -> tuple[int, ...]:
    if settings.concurrency is None:
        return (2, 4, 8) if settings.preset is None else (2, PRESET_CONCURRENCY)
    try:
        numbers = {int(part) for part in settings.concurrency.split(",")}
    except ValueError:
        numbers = {0}
    if min(numbers) < 2 or max(numbers) > 4096:
        raise UsageError(
            f"--concurrency {settings.concurrency!r} must be whole numbers from 2 to 4096 with commas: one request in "
            "flight is the solo baseline, which is always played"
        )
    return tuple(sorted({2, *numbers}))


def _max_tokens(settings: ServerSettings) -> int:
    if settings.max_tokens is not None:
        return settings.max_tokens
    return 48 if settings.preset is None else PRESET_TOKENS


def _prompts(settings: ServerSettings, api: Api) -> tuple[Prompt, ...]:
    limits = {"max_tokens": _max_tokens(settings), "temperature": float(settings.temperature)}
    if settings.preset is not None and settings.prompts is None:
        source = PromptSource("prompt", _PRESET_PROMPT, "the preset's prompt")
        return prompts_of([PromptRow("feynman", source, {})], api, limits, settings.seed)
    found = load_prompts(settings.prompts, api, limits, settings.seed)
    return found[:1] if settings.preset is not None else found


def _script(settings: ServerSettings, prompts: Sequence[Prompt]) -> list[ScriptRow] | None:
    text = settings.traffic
    if text is None or text in TRAFFIC:
        return None
    if not os.path.isfile(text):
        raise UsageError(f"unknown traffic {text!r} in --traffic: use {', '.join(TRAFFIC)}, or a script file")
    return read_script(Path(text), [prompt.id for prompt in prompts])


def _effective(settings: ServerSettings, shop: Workshop, asked: tuple[str, ...] | None) -> dict[str, Any]:
    named = settings.traffic
    is_file = named is not None and named not in TRAFFIC
    return {
        "model": settings.model,
        "api": settings.api,
        "prompts": "packaged" if settings.prompts is None else printable(settings.prompts.name),
        "traffic": printable(Path(named).name) if named is not None and is_file else named,
        "traffic_digest": sha256_file(Path(named)) if named is not None and is_file else None,
        "axes_by_name": None if asked is None else list(asked),
        "trials": settings.trials,
        "max_tokens": shop.max_tokens,
        "temperature": float(settings.temperature),
        "seed": settings.seed,
        "nonce": shop.nonce,
        "preset": settings.preset,
        "concurrency": list(shop.concurrency),
        "rate": float(settings.rate),
        "max_requests": settings.max_requests,
        "max_seconds": None if settings.max_seconds is None else float(settings.max_seconds),
    }
