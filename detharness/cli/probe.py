"""``detharness probe``: the options, and the kind of target they go to.

An option has no default here: what was not given is left to the settings of the kind of target, and what was given
to a kind it does not belong to is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from detharness.cli.exits import plain_errors
from detharness.errors import UsageError

Kind = Literal["engine", "transformers", "server"]

DEFAULT_TARGET = "engine:smollm2-135m"

_KINDS: Mapping[Kind, str] = {
    "engine": "an engine target (engine:MODEL)",
    "transformers": "a transformers target (hf:MODEL)",
    "server": "a server (http://HOST/v1)",
}

_BELONGS_TO: Mapping[str, tuple[Kind, ...]] = {
    # What is not listed belongs to every kind.
    "kernels": ("engine",),
    "dtype": ("engine", "transformers"),
    "page_size": ("engine",),
    "num_blocks": ("engine",),
    "max_step_tokens": ("engine",),
    "strict": ("engine",),
    "localize": ("engine",),
    "shrink": ("engine",),
    "traffic": ("engine", "server"),
    "model": ("server",),
    "api": ("server",),
    "header": ("server",),
    "preset": ("server",),
    "concurrency": ("server",),
    "rate": ("server",),
    "max_requests": ("server",),
    "max_seconds": ("server",),
    "timeout": ("server",),
    "tokenizer": ("server",),
    "launches": ("server",),
}

_OURS = ("target", "json", "debug")  # Read here, and no setting of a probe.


def probe(
    context: typer.Context,
    target: Annotated[
        str,
        typer.Argument(
            help="engine:MODEL, where MODEL is a folder, a .gguf file, a cached HF id, or smollm2-135m; hf:MODEL, "
            "the same model under transformers; or the base URL of an OpenAI-compatible server, http://HOST:PORT/v1, "
            "with --model."
        ),
    ] = DEFAULT_TARGET,
    prompts: Annotated[
        Path | None,
        typer.Option(help="Prompts: JSONL rows or plain text, one a line. Default: some that ship with it."),
    ] = None,
    traffic: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            help="Play this traffic alone. Engine: solo, repeat, burst, needle, ragged, borders, shared-prefix, "
            "tiny-pool, cancel, mixed-samplers, mixed-seeds. Server: concurrency, needle, open-loop, shared-prefix, "
            "repeat. Or a script file.",
        ),
    ] = None,
    axes: Annotated[
        str | None,
        typer.Option(
            metavar="A,B|all",
            help="Axes to play in full. Engine: batch_size, slot, content, chunk, prefix_cache, page_size, "
            "page_placement, preemption, threads, seeds, samplers, n, cancel, arrival, padding, run_to_run. "
            "Transformers: run_to_run, padded_batch, continuous_batching. "
            "Server: run_to_run, co_batching, prefix_cache. Default: a quick choice.",
        ),
    ] = None,
    kernels: Annotated[
        str | None,
        typer.Option(help="torch, invariant, or both (default): then invariant is the subject and torch the control."),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            help="fp32, bf16, bf16w (bf16 weights, fp32 arithmetic), or several with commas. Default: fp32,bf16."
        ),
    ] = None,
    trials: Annotated[
        int | None, typer.Option(help="Rounds; each draws other random neighbours. Default: 1, of a server 3.")
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(help="Tokens per reply where a prompt does not say. Default: 48, of transformers 24.")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(help="Sampling temperature where a prompt does not say. Default: 0.")
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(help="Seed of neighbours, order and arrivals, and of prompts that sample. Default: 0."),
    ] = None,
    page_size: Annotated[int | None, typer.Option(help="Engine: tokens per KV page. Default: 16.")] = None,
    num_blocks: Annotated[
        int | None, typer.Option(help="Engine: KV pages of the small pool in which requests preempt each other.")
    ] = None,
    max_step_tokens: Annotated[
        int | None, typer.Option(help="Engine: one more step budget for the chunk axis and for traffic you name.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Server: the model's name there.")] = None,
    api: Annotated[str | None, typer.Option(help="Server: chat (default) or completions.")] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME: VALUE",
            help="Server: a header of every request, as often as needed; values are written nowhere. A key comes from "
            "DETHARNESS_API_KEY or OPENAI_API_KEY.",
        ),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(help="Server: feynman, 1000 runs of one prompt at temperature 0 under load, 1000 tokens each."),
    ] = None,
    concurrency: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="Server: requests in flight at once; 2 is always among them. Default: 2,4,8."),
    ] = None,
    rate: Annotated[
        float | None, typer.Option(help="Server: arrivals a second of open-loop traffic. Default: 4.")
    ] = None,
    max_requests: Annotated[
        int | None, typer.Option(help="Server: end in order after this many requests, tries included.")
    ] = None,
    max_seconds: Annotated[float | None, typer.Option(help="Server: end in order after this many seconds.")] = None,
    timeout: Annotated[float | None, typer.Option(help="Server: seconds one reply may take. Default: 600.")] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(help="Server: folder with the model's tokenizer, for servers that return no token ids."),
    ] = None,
    launches: Annotated[
        Path | None,
        typer.Option(
            help="Server: probe several launches of it in turn; JSONL rows with name, url, changed and perhaps model."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Output folder, new or empty. Default: a new one in runs/.")] = None,
    localize: Annotated[
        bool,
        typer.Option(
            "--localize",
            help="Engine: name the first operator and layer that differ, for each axis that moved a reply.",
        ),
    ] = False,
    shrink: Annotated[
        bool,
        typer.Option(
            "--shrink",
            help="Engine: write the smallest traffic that moves a reply as a pytest file, for each such axis.",
        ),
    ] = False,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict", help="Engine: refuse a slower backend and kernels that fail their bit probe on this host."
        ),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="End stdout with the report as one line of JSON.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Play each prompt alone and among others, and compare what comes back, bit by bit.

    Exit codes: 0 nothing moved, 1 the subject moved, 2 usage, 3 an axis named with --axes was not exercised,
    130 interrupted.
    """
    with plain_errors(debug=debug):
        kind = kind_of(target)
        options = given_options(context, kind)
        if kind == "server":
            from detharness.cli.probe_server import probe_server

            code = probe_server(target, options, json=json)
        elif kind == "transformers":
            from detharness.cli.probe_transformers import probe_transformers

            code = probe_transformers(target, options, json=json)
        else:
            from detharness.cli.probe_engine import probe_engine

            code = probe_engine(target, options, json=json)
    raise typer.Exit(code)


def kind_of(target: str) -> Kind:
    """The kind of target that ``target`` names; a form nobody knows is left to the engine, which refuses it."""
    form = target.partition(":")[0]
    if form in ("http", "https"):
        return "server"
    return "transformers" if form == "hf" else "engine"


def given_options(context: typer.Context, kind: Kind) -> dict[str, Any]:
    """The options that were given; UsageError for one that does not belong to ``kind``."""
    absent: tuple[Any, ...] = (None, False, (), [])  # Compared with their type: 0 was given, and equals False.
    given = {
        name: value
        for name, value in context.params.items()
        if name not in _OURS and not any(value == one and type(value) is type(one) for one in absent)
    }
    for name in given:
        kinds = _BELONGS_TO.get(name)
        if kinds is not None and kind not in kinds:
            option = "--" + name.replace("_", "-")
            belongs = " or ".join(_KINDS[one] for one in kinds)
            raise UsageError(f"{option} belongs to {belongs}, and this is {_KINDS[kind]}: leave it out")
    return given
