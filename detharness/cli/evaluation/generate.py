"""``detharness eval generate``: ask every task, and keep every attempt."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from detharness.cli.exits import INTERRUPTED, plain_errors, say, write_stdout

if TYPE_CHECKING:
    from detharness.eval.generate.runner import Outcome, Progress
    from detharness.eval.generate.settings import Plan
    from detharness.eval.generate.store import Store
    from detharness.rendering.progress import Tally

_DEFAULT_TARGET = "engine:smollm2-135m"


def generate(
    task: Annotated[str, typer.Option(metavar="T", help="aime2026, gpqa-diamond, hle, hle-text, or arithmetic-mini.")],
    data: Annotated[
        Path | None,
        typer.Option(help="Your copy of the task's data: JSONL, JSON, CSV, Parquet or a save_to_disk folder."),
    ] = None,
    target: Annotated[
        str,
        typer.Option(help="engine:MODEL, hf:MODEL, or an OpenAI-compatible base URL (http.../v1)."),
    ] = _DEFAULT_TARGET,
    model: Annotated[str | None, typer.Option(metavar="M", help="The model's name at an endpoint.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of the run; one that holds this run is resumed. Default: a new one in runs/."),
    ] = None,
    samples: Annotated[int | None, typer.Option(help="Replies per task. Default: the task's own number.")] = None,
    concurrency: Annotated[int, typer.Option(help="Requests at once. No record depends on it.")] = 8,
    max_tokens: Annotated[int, typer.Option(help="Tokens per reply.")] = 1024,
    temperature: Annotated[float, typer.Option(help="Sampling temperature; 0 is greedy.")] = 0.0,
    top_p: Annotated[float, typer.Option(help="Sample from the likeliest tokens of this total probability.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Sample from so many likeliest tokens; 0 is all.")] = 0,
    min_p: Annotated[float, typer.Option(help="Sample from tokens this likely relative to the likeliest.")] = 0.0,
    stop: Annotated[list[str] | None, typer.Option(help="A text that ends a reply. May be repeated.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the run; each cell's own seed is a hash of it and the cell.")] = 0,
    shuffle_seed: Annotated[int, typer.Option(help="Seed of the order of choices.")] = 0,
    limit: Annotated[int | None, typer.Option(help="The first so many rows only: a named subset.")] = None,
    retries: Annotated[int, typer.Option(help="Further attempts at a cell in this session after an error.")] = 4,
    kernels: Annotated[str, typer.Option(help="Kernel set of the engine: invariant or torch.")] = "invariant",
    dtype: Annotated[str, typer.Option(help="Precision of the engine: fp32, bf16 or bf16w.")] = "fp32",
    json: Annotated[bool, typer.Option("--json", help="End stdout with one line of JSON.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Ask each task --samples times and keep every attempt, so that grading never has to ask again.

    Ctrl-C lets what runs end; the same command resumes. Exit codes: 0 every cell has an output, 1 some have none,
    2 usage, 130 interrupted.
    """
    with plain_errors(debug=debug):
        from detharness.eval.generate.settings import GenerateSettings, prepare
        from detharness.eval.generate.store import Store
        from detharness.targets.resolve_generation import resolve_generation

        settings = GenerateSettings(
            task=task,
            data=data,
            target=target,
            model=model,
            kernels=kernels,
            dtype=dtype,
            out=out,
            samples=samples,
            concurrency=concurrency,
            max_tokens=max_tokens,
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            min_p=min_p,
            stop=tuple(stop or ()),
            seed=seed,
            shuffle_seed=shuffle_seed,
            limit=limit,
            retries=retries,
        )
        plan = prepare(settings, partial(resolve_generation, target, model=model, kernels=kernels, dtype=dtype))
        with Store(plan) as store:
            code = _generate(plan, store, json=json)
    raise typer.Exit(code)


def _generate(plan: Plan, store: Store, *, json: bool) -> int:
    from detharness.eval.generate.runner import progress_of, run
    from detharness.records.canonical import canonical_bytes
    from detharness.rendering.progress import show_lanes
    from detharness.rendering.tables import make_console

    _say_what_was_found(plan, store)
    with show_lanes(make_console(), "generate", _tally(progress_of(plan, store))) as draw:
        outcome = run(
            plan,
            store,
            lambda progress: draw(_tally(progress)),
            lambda: say("Letting what runs end; Ctrl-C again stops at once."),
        )
    _say_how_it_ended(outcome, store)
    code = INTERRUPTED if outcome.interrupted else 0 if outcome.progress.complete else 1
    if json:
        summary = {
            "done": outcome.progress.done,
            "expected": outcome.progress.expected,
            "errors": outcome.progress.errors,
            "asked": outcome.asked,
            "seed_proof": None if outcome.proof is None else outcome.proof.as_record(),
            "exit_code": code,
        }
        write_stdout(canonical_bytes(summary).decode() + "\n")
    return code


def _tally(progress: Progress) -> Tally:
    from detharness.rendering.progress import Tally

    lanes = {name: (progress.done[name], expected) for name, expected in sorted(progress.expected.items())}
    return Tally(lanes, progress.left, progress.errors, progress.tokens)


def _say_what_was_found(plan: Plan, store: Store) -> None:
    for path in store.torn:
        say(f"Note: a torn last line was moved to {path}; what it held is asked again")
    for damage in store.damages:
        say(f"Warning: {damage.place} is {damage.kind}: {damage.problem}")
    if store.resumed:
        say(f"Resuming {store.folder}: {len(store.answered)} cells have an output")
    if plan.owed:
        say(f"Note: the target takes no images, so {plan.owed} image cells stay owed and Pass@1 stays null")
    if not plan.loaded.facts["matches_published"]:
        counts, published = plan.loaded.facts["counts"], plan.loaded.facts["published"]
        say(f"Note: a subset or another version: {_shown(counts)}; published are {_shown(published)}")


def _shown(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {modality}" for modality, count in counts.items())


def _say_how_it_ended(outcome: Outcome, store: Store) -> None:
    if outcome.proof is not None:
        say(f"Seed: {outcome.proof.verdict}: {outcome.proof.reason}")
    for kind, sentence in sorted(outcome.failures.items()):
        say(f"Warning: {kind}: {sentence}")
    done, expected = sum(outcome.progress.done.values()), sum(outcome.progress.expected.values())
    say(f"{done} of {expected} cells have an output; {outcome.progress.errors} were given up")
    say(f"Records: {store.folder}")
