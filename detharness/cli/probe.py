"""``detharness probe``: does other people's traffic change a reply?"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from detharness.cli.exits import plain_errors, say, write_stdout

if TYPE_CHECKING:
    from detharness.probes.settings import Plan

_DEFAULT_TARGET = "engine:smollm2-135m"


def probe(
    target: Annotated[
        str,
        typer.Argument(help="engine:MODEL, where MODEL is a folder, a .gguf file, a cached HF id, or smollm2-135m."),
    ] = _DEFAULT_TARGET,
    prompts: Annotated[
        Path | None,
        typer.Option(help="Prompts: JSONL rows or plain text, one a line. Default: four that ship with it."),
    ] = None,
    traffic: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            help="Play this traffic instead of axes: solo, repeat, burst, needle, ragged, borders, shared-prefix, "
            "tiny-pool, cancel, mixed-samplers, mixed-seeds, or a script file.",
        ),
    ] = None,
    axes: Annotated[
        str | None,
        typer.Option(
            metavar="A,B|all",
            help="Axes to play in full: batch_size, slot, content, chunk, prefix_cache, page_size, page_placement, "
            "preemption, threads. Default: a quick choice.",
        ),
    ] = None,
    kernels: Annotated[
        str, typer.Option(help="torch, invariant, or both: then invariant is the subject and torch the control.")
    ] = "both",
    dtype: Annotated[
        str, typer.Option(help="fp32, bf16, bf16w (bf16 weights, fp32 arithmetic), or several with commas.")
    ] = "fp32,bf16",
    trials: Annotated[int, typer.Option(help="Rounds; each draws other random neighbours.")] = 1,
    max_tokens: Annotated[int, typer.Option(help="Tokens per reply where a prompt does not say.")] = 48,
    temperature: Annotated[float, typer.Option(help="Sampling temperature where a prompt does not say.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Seed of the random neighbours, and of prompts that sample.")] = 0,
    page_size: Annotated[int, typer.Option(help="Tokens per KV page.")] = 16,
    num_blocks: Annotated[
        int | None, typer.Option(help="KV pages of the small pool in which requests preempt each other.")
    ] = None,
    max_step_tokens: Annotated[
        int | None, typer.Option(help="One more step budget for the chunk axis and for traffic you name.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Output folder, new or empty. Default: a new one in runs/.")] = None,
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Refuse a slower backend and kernels that fail their bit probe on this host."),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="End stdout with the report as one line of JSON.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Play each prompt alone and among others, and compare every token, logprob and logit bit by bit.

    Exit codes: 0 nothing moved, 1 the subject moved, 2 usage, 3 an axis named with --axes was not exercised,
    130 interrupted.
    """
    with plain_errors(debug=debug):
        from detharness.probes.settings import ProbeSettings, prepare
        from detharness.targets.resolve import resolve_target

        settings = ProbeSettings(
            target=target,
            prompts=prompts,
            traffic=traffic,
            axes=axes,
            kernels=kernels,
            dtype=dtype,
            trials=trials,
            max_tokens=max_tokens,
            temperature=temperature,
            seed=seed,
            page_size=page_size,
            num_blocks=num_blocks,
            max_step_tokens=max_step_tokens,
            out=out,
        )
        code = _run(prepare(settings, partial(resolve_target, strict=strict)), json=json)
    raise typer.Exit(code)


def _run(plan: Plan, *, json: bool) -> int:
    from detharness.probes.report import exit_code
    from detharness.probes.runner import run
    from detharness.probes.tables import print_report
    from detharness.records.canonical import canonical_bytes
    from detharness.rendering.progress import show_progress
    from detharness.rendering.tables import make_console

    console = make_console()
    outcome = run(
        plan,
        lambda total: show_progress(console, "probe", total),
        lambda: say("Stopping after this trial; Ctrl-C again stops at once."),
    )
    print_report(console, outcome.report)
    say(f"Records and report: {outcome.folder}")
    code = exit_code(outcome.report, interrupted=outcome.interrupted)
    if json:
        write_stdout(canonical_bytes({**outcome.report, "exit_code": code}).decode() + "\n")
    return code
