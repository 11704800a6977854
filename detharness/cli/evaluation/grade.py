"""``detharness eval grade``: what is the score, and is it one?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from detharness.cli.exits import plain_errors, say, write_stdout

_WARNINGS = 20  # A file that was torn throughout has thousands.

if TYPE_CHECKING:
    from detharness.eval.grade.settings import Plan
    from detharness.targets.generation import GenerationTarget


def grade(
    run: Annotated[Path, typer.Argument(help="The folder of a run: --out of eval generate.")],
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the grade; an earlier grade in it is replaced. Default: RUN/grade, with -lenient or "
            "-at-N-tokens behind it where that was asked."
        ),
    ] = None,
    mode: Annotated[
        str, typer.Option(metavar="strict|lenient", help="lenient also counts answers without a marker or a box.")
    ] = "strict",
    think_tag: Annotated[
        list[str] | None,
        typer.Option(
            help="A tag that encloses reasoning in the text, by its name. May be repeated. Default: all known."
        ),
    ] = None,
    at: Annotated[
        str | None, typer.Option(metavar="K,K", help="Values of k for pass@k and maj@k. Default: 1, 2, 4, ... samples.")
    ] = None,
    judge: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Ask the judge behind this OpenAI-compatible base URL (http.../v1)."),
    ] = None,
    judge_model: Annotated[
        str | None, typer.Option(metavar="M", help="The judge's model name at its endpoint.")
    ] = None,
    judge_cache: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Replay a judge.jsonl of an earlier grade; nobody is asked.")
    ] = None,
    judge_template: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The judge's prompt, with {question}, {response} and {correct_answer}."),
    ] = None,
    judge_repeats: Annotated[
        int, typer.Option(help="Ask the judge so often; the first reply decides, the rest give its flip rate.")
    ] = 1,
    judge_concurrency: Annotated[int, typer.Option(help="Judge requests at once.")] = 8,
    max_tokens_budget: Annotated[
        int | None, typer.Option(metavar="N", help="Grade each reply as if it had been cut after N tokens.")
    ] = None,
    tokenizer: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Whose tokenizer wrote the stored token ids, for the cut.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="End stdout with the report as one line of JSON.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Judge every recorded reply and count; Pass@1 is a number only when every task x sample has a verdict.

    The generations are read and never touched. Exit codes: 0 coverage complete, 1 incomplete, 2 usage, 130 interrupted.
    """
    with plain_errors(debug=debug):
        from detharness.eval.grade.settings import GradeSettings, plan_grade
        from detharness.eval.runs import open_run

        settings = GradeSettings(
            mode=mode,
            out=out,
            think_tags=think_tag or (),
            at=at,
            judge=judge,
            judge_model=judge_model,
            judge_cache=judge_cache,
            judge_template=judge_template,
            judge_repeats=judge_repeats,
            judge_concurrency=judge_concurrency,
            max_tokens_budget=max_tokens_budget,
            tokenizer=tokenizer,
        )
        code = _grade(plan_grade(open_run(run), settings), json=json)
    raise typer.Exit(code)


def _connect(url: str, model: str) -> GenerationTarget:
    from detharness.targets.endpoint.openai_endpoint import OpenAIEndpoint

    return OpenAIEndpoint(url, model)


def _grade(plan: Plan, *, json: bool) -> int:
    from detharness.eval.grade.command import grade as run_grade
    from detharness.eval.grade.tables import print_grade
    from detharness.records.canonical import canonical_bytes
    from detharness.rendering.progress import show_progress
    from detharness.rendering.tables import make_console

    console = make_console()

    def show_digests(digests: dict[str, str], when: str) -> None:
        for name, digest in digests.items():
            say(f"{name} {when}: sha256 {digest}")

    outcome = run_grade(
        plan,
        _connect,
        lambda digests: show_digests(digests, "before"),
        lambda total: show_progress(console, "judge", total),
    )
    show_digests(outcome.digests, "after")
    warnings = [f"{damage.place} is {damage.kind}: {damage.problem}" for damage in outcome.grading.damages]
    warnings += [f"the judge failed ({kind}): {sentence}" for kind, sentence in outcome.failures]
    for warning in warnings[:_WARNINGS]:
        say(f"Warning: {warning}")
    if len(warnings) > _WARNINGS:
        say(f"and {len(warnings) - _WARNINGS} more warnings of this kind")
    print_grade(console, outcome.report)
    say(f"Verdicts, report and page: {outcome.folder}")
    if json:
        write_stdout(canonical_bytes({**outcome.report, "exit_code": outcome.exit_code}).decode() + "\n")
    return outcome.exit_code
