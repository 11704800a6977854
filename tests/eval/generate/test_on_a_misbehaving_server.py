"""A server that limits, breaks, hangs, cuts and lies: error rows, exit 1, and no verdict without an answer."""

from __future__ import annotations

import json

import pytest

from detharness.eval.generate.runner import run
from detharness.eval.generate.settings import GenerateSettings, prepare
from detharness.eval.generate.store import Store
from detharness.eval.grade.command import grade
from detharness.eval.grade.settings import GradeSettings, plan_grade
from detharness.eval.runs import open_run
from detharness.targets.endpoint.http_client import Limits
from detharness.targets.endpoint.openai_endpoint import OpenAIEndpoint

SHORT = Limits(connect=5.0, stall=0.3, total=2.0, body=2**20)


@pytest.fixture
def asked(misbehaving_server, tmp_path, monkeypatch):
    """``asked(model)``: how the session ended, and the rows of its records."""
    monkeypatch.setattr("detharness.eval.generate.runner._wait", lambda attempt, asked_for: 0.0)

    def ask(model):
        settings = GenerateSettings(
            task="arithmetic-mini", target="x", out=tmp_path / "run", samples=1, retries=1, max_tokens=8
        )
        plan = prepare(settings, lambda: OpenAIEndpoint(misbehaving_server.url, model, limits=SHORT))
        with Store(plan) as store:
            outcome = run(plan, store, lambda progress: None, lambda: None)
        lines = (tmp_path / "run" / "generations.jsonl").read_bytes().splitlines()
        return outcome, [json.loads(line) for line in lines]

    return ask


def graded(folder):
    plan = plan_grade(open_run(folder), GradeSettings())
    outcome = grade(plan, lambda url, model: pytest.fail("no judge"), lambda digests: None, lambda total: None)
    verdicts = [json.loads(line) for line in (plan.out / "verdicts.jsonl").read_bytes().splitlines()]
    return outcome, {row["task_id"]: row for row in verdicts}


def test_a_mixture_of_faults_is_error_rows_and_no_verdict(asked, tmp_path):
    outcome, rows = asked("mixed")
    assert not outcome.progress.complete
    answered = {row["task_id"] for row in rows if row["status"] == "ok"}
    failed = {row["task_id"] for row in rows} - answered
    assert answered
    assert len(outcome.failures) > 1, "the mixture must have failed in several ways"
    assert len(failed) == outcome.progress.errors > 0
    assert all(row["output"]["text"] is not None for row in rows if row["status"] == "ok")
    ended, verdicts = graded(tmp_path / "run")
    assert ended.exit_code == 1
    assert ended.report["pass_at_1"] is None
    assert {task for task, row in verdicts.items() if row["verdict"] == "error"} == failed
    assert ended.report["coverage"]["errors"] == len(failed)


@pytest.mark.parametrize("model", ["429-once", "500-once", "html-once", "cut-by-length-once", "hangs-up-once"])
def test_a_fault_that_passes_costs_an_attempt_and_no_cell(asked, model):
    outcome, rows = asked(model)
    assert outcome.progress.complete
    assert sum(row["status"] == "error" for row in rows) == 20


@pytest.mark.parametrize(("model", "attempts"), [("401", 1), ("404", 1), ("500", 2), ("null", 2), ("silent", 2)])
def test_a_fault_that_lasts_ends_every_cell_in_errors(asked, tmp_path, model, attempts):
    outcome, rows = asked(model)
    assert outcome.progress.done == {"text": 0}
    assert outcome.progress.errors == 20
    assert len(rows) == 20 * attempts
    ended, verdicts = graded(tmp_path / "run")
    assert ended.exit_code == 1
    assert {row["verdict"] for row in verdicts.values()} == {"error"}
