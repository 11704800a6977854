"""report.html of one run, of any kind: the verdict first, what it rests on below, what was not looked at last.

It is made of report.json alone, holds no script, and asks for nothing from outside. Texts of models, prompts and
servers are cut to what a person reads: report.json holds them whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from detharness.probes.page.axes import axis_matrix, level_tables
from detharness.probes.page.blocks import flat_rows, key_table, section, sentence_list, verdict_badge
from detharness.probes.page.causes import cause_blocks
from detharness.probes.page.divergences import divergence_blocks
from detharness.probes.page.files import write_file
from detharness.probes.page.prompts import prompt_tables
from detharness.probes.page.sentences import headline
from detharness.probes.page.servers import capability_table, finding_table
from detharness.probes.page.survival import survival_figures
from detharness.rendering.html import Html, excerpt, html_page, tag

PAGE = "report.html"

_NAME_BYTES = 120


def probe_page(report: Mapping[str, Any]) -> str:
    """The page of ``report``; same report, same bytes. It stays below 5 MB."""
    subjects_first = sorted(report["arms"], key=lambda arm: arm["role"] != "subject")
    return html_page(f"probe of {_name(report)}", Html("\n".join(_body({**report, "arms": subjects_first}))))


def write_page(folder: Path, report: Mapping[str, Any]) -> None:
    """Write the page of ``report`` into a run's folder; UsageError where it cannot be written."""
    write_file(folder / PAGE, probe_page(report).encode())


def _body(report: Mapping[str, Any]) -> list[Html]:
    return [
        tag("h1", f"Does other people's traffic change a reply of {_name(report)}?"),
        tag("p", verdict_badge(report["verdict"])),
        tag("p", headline(report), class_="headline"),
        *(
            []
            if report["complete"]
            else [tag("p", "The run was cut short: the counts cover what was done until then.")]
        ),
        *sentence_list(report["summary"]),
        tag("p", Html('What was not looked at stands <a href="#not-shown">at the end</a>.')),
        section("How long replies stay the same", survival_figures(report)),
        section("Prompts", prompt_tables(report)),
        section("Where replies part", divergence_blocks(report)),
        section("Axes", [axis_matrix(report), *level_tables(report)]),
        section("Solo against loaded", finding_table(report)),
        section("What the server can do", capability_table(report)),
        section("Causes", cause_blocks(report)),
        section("What was asked", [key_table(flat_rows(report["effective_config"]))]),
        section("Target", [key_table(flat_rows(report["target"]))]),
        section("Environment", [key_table(flat_rows(report["environment"]))]),
        tag("h2", "What this does not show", id="not-shown"),
        *sentence_list(report["not_shown"]),
    ]


def _name(report: Mapping[str, Any]) -> str:
    name = report["effective_config"].get("target") or report["target"].get("model") or "a target"
    return excerpt(str(name), _NAME_BYTES)
