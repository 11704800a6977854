"""``detharness eval``: generate, grade, verify, compare."""

import typer

from detharness.cli.evaluation.compare import compare
from detharness.cli.evaluation.generate import generate
from detharness.cli.evaluation.grade import grade
from detharness.cli.evaluation.verify import verify

evaluation = typer.Typer(
    name="eval",
    help="Ask, grade, prove and compare: a Pass@1 only when every task x sample is there.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
evaluation.command("generate")(generate)
evaluation.command("grade")(grade)
evaluation.command("verify")(verify)
evaluation.command("compare")(compare)
