"""What the user asked, checked before anything heavy runs, and what follows from it: arms, probes, the manifest."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from detharness.errors import CapacityError, UsageError
from detharness.probes.axes import AXES, parse_axes
from detharness.probes.bench import pages
from detharness.probes.depth import ArmDepth, depth_for
from detharness.probes.prompt_files import (
    TOP_LOGPROBS,
    PromptRow,
    packaged_prompts,
    read_prompts,
    sampling_params,
    tokenize_prompts,
)
from detharness.probes.scenario import Probe
from detharness.probes.traffic.generators import generator
from detharness.probes.traffic.script import Script, ScriptRow, read_script, tokenize_script
from detharness.records.digests import sha256_file
from detharness.records.environment import environment_fingerprint
from detharness.targets.protocol import DTYPES, EngineConfig, SamplingParams, ScriptedTarget

SCHEMA = "detharness.probe/1"
KERNELS = ("torch", "invariant")

# Observations hold whole logits rows: those of the solo replies, the common play, and the play in hand.
LOGITS_BYTES = 2 * 1024**3

ResolveTarget = Callable[[str, str, str], ScriptedTarget]


@dataclass(frozen=True, kw_only=True)
class ProbeSettings:
    """The options of ``detharness probe`` as they were given; None means the default choice."""

    target: str
    prompts: Path | None = None
    traffic: str | None = None
    axes: str | None = None
    kernels: str = "both"
    dtype: str = "fp32,bf16"
    trials: int = 1
    max_tokens: int = 48
    temperature: float = 0.0
    seed: int = 0
    page_size: int = 16
    num_blocks: int | None = None
    max_step_tokens: int | None = None
    localize: bool = False
    shrink: bool = False
    out: Path | None = None


@dataclass(frozen=True)
class Arm:
    """One kernel set in one dtype; the subject decides the verdict, the control shows what could move."""

    kernels: str
    dtype: str
    role: str

    @property
    def name(self) -> str:
        """The arm's name in records."""
        return f"{self.kernels}/{self.dtype}"


@dataclass(frozen=True)
class Plan:
    """A probe ready to run: everything validated, prompts tokenized, nothing played or written yet."""

    settings: ProbeSettings
    arms: tuple[Arm, ...]
    depths: dict[str, ArmDepth]
    asked_axes: tuple[str, ...] | None
    probes: tuple[Probe, ...]
    twins: tuple[Probe, ...]
    generator: str | None
    script: Script | None
    config: EngineConfig
    capture_logits: bool
    dispatch_borders: dict[str, tuple[int, ...]]
    vocab_size: int
    manifest: dict[str, Any]
    target: ScriptedTarget


def prepare(settings: ProbeSettings, resolve: ResolveTarget) -> Plan:
    """Check everything that can be checked, cheap things first, then open the target and tokenize.

    UsageError, CheckpointError, RequestError or CapacityError in one sentence; nothing is written.
    """
    arms = _arms(settings)
    asked = None if settings.axes is None else parse_axes(settings.axes)
    _check_numbers(settings)
    defaults = sampling_params(
        {"temperature": settings.temperature, "max_tokens": settings.max_tokens, "ignore_eos": True},
        SamplingParams(logprobs=TOP_LOGPROBS),
        "--temperature",
    )
    rows = packaged_prompts() if settings.prompts is None else read_prompts(settings.prompts)
    name, script_rows = _traffic(settings.traffic, rows)
    check_out(settings.out)
    target = resolve(settings.target, arms[0].kernels, arms[0].dtype)
    borders = {}
    for kernels in sorted({arm.kernels for arm in arms}):
        sibling = target.with_kernels(kernels)
        _ = sibling.certificate  # Refused or warned of now, not when the arm's turn comes.
        borders[kernels] = sibling.dispatch_borders
    probes = tuple(tokenize_prompts(rows, target, defaults, settings.seed))
    script = None if script_rows is None else tokenize_script(script_rows, target, defaults, settings.seed)
    _check_pool(settings, probes)
    depths = {arm.name: depth_for(arm.dtype, asked, traffic=settings.traffic is not None) for arm in arms}
    twins = any(AXES[axis].watches_twins for depth in depths.values() for axis in depth.axes)
    rows_held = sum(probe.sampling.max_tokens for probe in probes) * (2 if twins else 1)
    capture = 3 * rows_held * target.vocab_size * 4 <= LOGITS_BYTES
    plan = Plan(
        settings=settings,
        arms=arms,
        depths=depths,
        asked_axes=asked,
        probes=probes,
        twins=tuple(probe.twin() for probe in probes if probe.greedy) if twins else (),
        generator=name,
        script=script,
        config=EngineConfig(page_size=settings.page_size),
        capture_logits=capture,
        dispatch_borders=borders,
        vocab_size=target.vocab_size,
        manifest={},
        target=target,
    )
    return replace(plan, manifest=_manifest(plan))


def _arms(settings: ProbeSettings) -> tuple[Arm, ...]:
    if settings.kernels not in (*KERNELS, "both"):
        raise UsageError(f"unknown kernels {settings.kernels!r} in --kernels: use 'torch', 'invariant' or 'both'")
    asked = [name.strip() for name in settings.dtype.split(",")]
    for name in asked:
        if name not in DTYPES:
            raise UsageError(f"unknown dtype {name!r} in --dtype: use some of {', '.join(DTYPES)} with commas")
    dtypes = [name for name in DTYPES if name in asked]
    if settings.kernels == "both":
        roles = [("torch", "control"), ("invariant", "subject")]
    else:
        roles = [(settings.kernels, "subject")]
    return tuple(Arm(kernels, dtype, role) for dtype in dtypes for kernels, role in roles)


def _check_numbers(settings: ProbeSettings) -> None:
    # The upper ends keep a slip of the finger from filling the memory; the context bounds --max-tokens.
    for option, value, low, high in (
        ("--trials", settings.trials, 1, 1000),
        ("--max-tokens", settings.max_tokens, 2, None),  # One token has no second row to move.
        ("--page-size", settings.page_size, 1, 1024),
        ("--num-blocks", settings.num_blocks, 1, 2**20),
        ("--max-step-tokens", settings.max_step_tokens, 1, 2**20),
        ("--seed", settings.seed, 0, 2**62),  # Prompts count up from it, and end below 2**63.
    ):
        if value is not None and value < low:
            raise UsageError(f"{option} must be at least {low}, got {value}")
        if value is not None and high is not None and value > high:
            raise UsageError(f"{option} must be at most {high}, got {value}")


def _traffic(text: str | None, prompts: list[PromptRow]) -> tuple[str | None, list[ScriptRow] | None]:
    """A generator's name, or the rows of a script file."""
    if text is None:
        return None, None
    if os.path.isfile(text):  # Path.is_file would raise for a name that is too long.
        return None, read_script(Path(text), [row.id for row in prompts])
    generator(text)
    return text, None


def check_out(out: Path | None) -> None:
    """Refuse an output folder that cannot become a new run, before a model is loaded for it."""
    folder = Path("runs") if out is None else out
    try:
        if folder.exists() and not folder.is_dir():
            raise UsageError(f"--out {folder} is a file: name a folder that is new or empty")
        if out is not None and out.is_dir() and next(out.iterdir(), None) is not None:
            raise UsageError(f"--out {out} is not empty: name a folder that is new or empty")
        parent = folder.absolute()
        while not os.path.lexists(parent):
            parent = parent.parent
        parent.lstat()  # lexists says no to a name that is too long; lstat says why at the first parent that is there.
        if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
            raise UsageError(f"cannot write the output folder {folder}: choose another with --out")
    except OSError as error:
        raise UsageError(
            f"cannot write the output folder {folder}: {error.strerror}; choose another with --out"
        ) from None


def _check_pool(settings: ProbeSettings, probes: tuple[Probe, ...]) -> None:
    if settings.num_blocks is None:
        return
    for probe in probes:
        need = pages(len(probe.token_ids) + probe.sampling.max_tokens, settings.page_size)
        if need > settings.num_blocks:
            raise CapacityError(
                f"prompt {probe.id!r} needs {need} KV pages of {settings.page_size} tokens, and --num-blocks is "
                f"{settings.num_blocks}: raise it or lower --max-tokens"
            )


def _manifest(plan: Plan) -> dict[str, Any]:
    """What was asked, after defaults and rounding: no clock, no host, no path of the machine."""
    settings = plan.settings
    described = {**plan.target.describe(), "model": without_folder(settings.target)}
    return {
        "schema": SCHEMA,
        "command": "probe",
        "target": described,
        "arms": [
            {
                "name": arm.name,
                "kernels": arm.kernels,
                "dtype": arm.dtype,
                "role": arm.role,
                "axes": list(plan.depths[arm.name].axes),
                "dispatch_borders": list(plan.dispatch_borders[arm.kernels]),
                "combined_rows": plan.depths[arm.name].combined,
                "reply_tokens": plan.depths[arm.name].tokens,
            }
            for arm in plan.arms
        ],
        "effective_config": {
            "target": described["model"],
            "prompts": "packaged" if settings.prompts is None else printable(settings.prompts.name),
            "traffic": plan.generator or (None if settings.traffic is None else printable(Path(settings.traffic).name)),
            "traffic_digest": None if plan.script is None else sha256_file(Path(settings.traffic or "")),
            "axes_by_name": None if plan.asked_axes is None else list(plan.asked_axes),
            "kernels": settings.kernels,
            "dtypes": [dtype for dtype in DTYPES if any(arm.dtype == dtype for arm in plan.arms)],
            "trials": settings.trials,
            "max_tokens": settings.max_tokens,
            "temperature": float(settings.temperature),
            "seed": settings.seed,
            "small_pool": settings.num_blocks,
            "chunk_budget": settings.max_step_tokens,
            "logits_compared": plan.capture_logits,
            "localize": settings.localize,
            "shrink": settings.shrink,
            "engine": plan.config.as_record(),
        },
        "prompts": [
            {
                "id": probe.id,
                "token_ids": list(probe.token_ids),
                "temperature": float(probe.sampling.temperature),
                "max_tokens": probe.sampling.max_tokens,
                "seq_seed": probe.sampling.seq_seed,
                "twin_of": probe.twin_of,
            }
            for probe in (*plan.probes, *plan.twins)
        ],
        "environment": environment_fingerprint(),
        "amplified": settings.prompts is None,
    }


def printable(name: str) -> str:
    """A file's name as JSON can hold it: bytes that are no UTF-8 as escapes."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def without_folder(target: str) -> str:
    """The target as given, the folder of a local model left out: paths of this machine stay out of manifests."""
    kind, separator, model = printable(target).partition(":")
    return f"{kind}{separator}{Path(model).name}" if Path(model).is_absolute() or Path(model).exists() else target
