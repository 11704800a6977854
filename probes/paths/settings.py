"""What the user asked of a probe of paths, checked before anything heavy runs, and the manifest that follows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from detharness.errors import UsageError
from detharness.probes.paths.axes import PATH_AXES, parse_path_axes
from detharness.probes.paths.bench import PathBench
from detharness.probes.paths.padded_batch import RAGGED
from detharness.probes.prompt_files import (
    TOP_LOGPROBS,
    PromptRow,
    packaged_prompts,
    read_prompts,
    sampling_params,
    tokenize_prompts,
)
from detharness.probes.scenario import Probe
from detharness.probes.settings import LOGITS_BYTES, SCHEMA, check_out, printable, without_folder
from detharness.records.environment import environment_fingerprint
from detharness.targets.paths import PathTarget
from detharness.targets.protocol import SamplingParams

DTYPES = ("fp32", "bf16")
QUICK_TOKENS, FULL_TOKENS = 24, 48  # Replies of the default choice are shorter than where axes are named.

ResolvePaths = Callable[[str, str], PathTarget]

# Of a prompt's sampling fields: generate has one sampler for a whole batch, and nothing has a seed per request.
_FIELDS = ("max_tokens", "ignore_eos", "temperature")
_GREEDY_ONLY = "a transformers target is probed greedily, since neither generate nor its continuous batching knows a "
_GREEDY_ONLY += "seed per request"


@dataclass(frozen=True, kw_only=True)
class PathSettings:
    """The options of ``detharness probe`` as they were given; None means the default choice."""

    target: str
    prompts: Path | None = None
    axes: str | None = None
    dtype: str = "fp32,bf16"
    trials: int = 1
    max_tokens: int | None = None
    temperature: float = 0.0
    seed: int = 0
    out: Path | None = None


@dataclass(frozen=True)
class PathPlan:
    """A probe ready to run: everything validated, prompts tokenized, nothing played or written yet."""

    settings: PathSettings
    dtypes: tuple[str, ...]
    axes: tuple[str, ...]
    bench: PathBench
    capture_logits: bool
    manifest: dict[str, Any]
    target: PathTarget


def prepare(settings: PathSettings, resolve: ResolvePaths) -> PathPlan:
    """Check everything that can be checked, cheap things first, then open the target and tokenize.

    UsageError, CheckpointError or RequestError in one sentence; nothing is written.
    """
    dtypes = _dtypes(settings.dtype)
    asked = None if settings.axes is None else parse_path_axes(settings.axes)
    max_tokens = settings.max_tokens
    if max_tokens is None:
        max_tokens = QUICK_TOKENS if asked is None else FULL_TOKENS
    _check_numbers(settings, max_tokens)
    defaults = sampling_params(
        {"temperature": settings.temperature, "max_tokens": max_tokens, "ignore_eos": True},
        SamplingParams(logprobs=TOP_LOGPROBS),
        "--temperature",
    )
    if defaults.temperature:
        raise UsageError(f"--temperature must be 0, got {settings.temperature}: {_GREEDY_ONLY}")
    rows = packaged_prompts() if settings.prompts is None else read_prompts(settings.prompts)
    for row in rows:
        _check_sampling(row)
    check_out(settings.out)
    target = resolve(settings.target, dtypes[0])
    probes = tuple(tokenize_prompts(rows, target, defaults, settings.seed))
    plan = PathPlan(
        settings=settings,
        dtypes=dtypes,
        axes=tuple(PATH_AXES) if asked is None else asked,
        bench=PathBench(probes, target.vocab_size, target.context_length, settings.seed, quick=asked is None),
        capture_logits=_fits(probes, target.vocab_size),
        manifest={},
        target=target,
    )
    return replace(plan, manifest=_manifest(plan, max_tokens, asked))


def _dtypes(text: str) -> tuple[str, ...]:
    asked = [name.strip() for name in text.split(",")]
    for name in asked:
        if name not in DTYPES:
            raise UsageError(f"unknown dtype {name!r} in --dtype: a transformers target runs in {' or '.join(DTYPES)}")
    return tuple(name for name in DTYPES if name in asked)


def _check_numbers(settings: PathSettings, max_tokens: int) -> None:
    for option, value, low, high in (
        ("--trials", settings.trials, 1, 1000),
        ("--max-tokens", max_tokens, 2, None),  # One token has no second row to move.
        ("--seed", settings.seed, 0, 2**62),
    ):
        if value < low:
            raise UsageError(f"{option} must be at least {low}, got {value}")
        if high is not None and value > high:
            raise UsageError(f"{option} must be at most {high}, got {value}")


def _check_sampling(row: PromptRow) -> None:
    for name, value in row.sampling.items():
        if name not in _FIELDS or (name == "temperature" and value != 0):
            raise UsageError(
                f"{row.source.where}: {name} cannot be asked here, because {_GREEDY_ONLY}: leave it out "
                "(max_tokens and ignore_eos are known)"
            )


def _fits(probes: tuple[Probe, ...], vocab_size: int) -> bool:
    """Whether logits rows are kept between plays. UsageError where not even one play's would fit: they are made of
    the model's own output, so at least those of the play in hand are held, twice while they are put together.
    """
    most = max(probe.sampling.max_tokens for probe in probes)
    in_hand = 2 * RAGGED * most * vocab_size * 4
    if in_hand > LOGITS_BYTES:
        limit = LOGITS_BYTES // (2 * RAGGED * vocab_size * 4)
        raise UsageError(
            f"replies of {most} tokens are too long here, since logits have {vocab_size} entries a row: lower "
            f"--max-tokens, or the prompts' own, to {limit}"
        )
    held = 2 * sum(probe.sampling.max_tokens for probe in probes) * vocab_size * 4
    return in_hand + held <= LOGITS_BYTES


def _manifest(plan: PathPlan, max_tokens: int, asked: tuple[str, ...] | None) -> dict[str, Any]:
    """What was asked, after defaults and rounding: no clock, no host, no path of the machine."""
    settings = plan.settings
    described = {**plan.target.describe(), "model": without_folder(settings.target)}
    return {
        "schema": SCHEMA,
        "command": "probe",
        "kind": "transformers",
        "target": described,
        "arms": [
            {
                "name": f"transformers/{dtype}",
                "kernels": None,
                "dtype": dtype,
                "role": "subject",
                "axes": list(plan.axes),
            }
            for dtype in plan.dtypes
        ],
        "effective_config": {
            "target": described["model"],
            "prompts": "packaged" if settings.prompts is None else printable(settings.prompts.name),
            "axes_by_name": None if asked is None else list(asked),
            "dtypes": list(plan.dtypes),
            "trials": settings.trials,
            "max_tokens": max_tokens,
            "temperature": 0.0,
            "seed": settings.seed,
            "each_probe": not plan.bench.quick,
            "logits_compared": plan.capture_logits,
        },
        "prompts": [
            {
                "id": probe.id,
                "token_ids": list(probe.token_ids),
                "max_tokens": probe.sampling.max_tokens,
                "ignore_eos": probe.sampling.ignore_eos,
            }
            for probe in plan.bench.probes
        ],
        "environment": environment_fingerprint(),
        "amplified": settings.prompts is None,
    }
