"""Reports to show: of a played toy run, of a server, and hostile or large ones built from these."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from html.parser import HTMLParser

import pytest

from detharness.probes.runner import run

HOSTILE = "</script><script>alert(1)</script>`|\n# <img src=http://x>\x1b[31m\u202e\x00]]>&amp;'\"\ufffe\ud800"


class Elements(HTMLParser):
    """A page taken apart: its elements in order, their attributes, and its text."""

    def __init__(self, page):
        super().__init__(convert_charrefs=True)
        self.names, self.attributes, self.text = [], [], ""
        self.feed(page)
        self.close()

    def handle_starttag(self, name, attributes):
        self.names.append(name)
        self.attributes += [(name, key, value) for key, value in attributes]

    def handle_data(self, data):
        if self.names and self.names[-1] not in ("style", "script"):
            self.text += data


@pytest.fixture
def elements():
    return Elements


@pytest.fixture
def hostile():
    return HOSTILE


@pytest.fixture
def played(mini_target, make_plan):
    """The report of a toy run whose control moves with the batch size and whose subject holds."""

    def report(fault="rows counted", faulty=("torch",), **options):
        plan = make_plan(mini_target(fault=fault, faulty=faulty), **options)
        return run(plan, lambda total: nullcontext(lambda note: None), lambda: None).report

    return report


def _axis(status, trials, diverged, reason=None):
    return {
        "status": status,
        "reason": reason,
        "trials": trials,
        "diverged": diverged,
        "diverged_tokens": diverged,
        "exercised": {"concurrencies": [2, 4]} if trials else {},
        "levels": {"2 in flight": {"trials": trials, "diverged": diverged}} if trials else {},
        "first_token_divergence": 7 if diverged else None,
        "first_logprob_divergence": None,
        "max_logprob_gap": None,
    }


SERVER = {
    "schema": "detharness.probe/1",
    "kind": "server",
    "verdict": "diverged",
    "complete": True,
    "summary": ["co-batching changed 5 of 40 replies."],
    "not_shown": ["Only this server was looked at."],
    "amplified": False,
    "effective_config": {"target": "http://host/v1", "model": "m", "axes_by_name": None},
    "environment": {"python": "3.11"},
    "target": {"url": "http://host/v1", "model": "m"},
    "capabilities": [
        {"name": "logprobs", "status": "works", "detail": "5 of the best"},
        {"name": "seed", "status": "ignored", "detail": "two seeded replies differ"},
        {"name": "token ids", "status": "absent", "detail": None},
        {"name": "cache salt", "status": "not_tested", "detail": "no prefix cache seen"},
    ],
    "findings": {
        "co_batching": {
            "solo": {"n": 20, "diverged": 0},
            "loaded": {"n": 40, "diverged": 5},
            "test": "Fisher's exact test, two-sided",
            "p_value": 0.16,
            "distinct_outputs": 3,
            "minority": {"count": 5, "n": 60, "rate": 1 / 12, "interval_95": [0.04, 0.18]},
        }
    },
    "axes": {
        "run_to_run": _axis("identical", 20, 0),
        "co_batching": _axis("diverged", 40, 5),
        "prefix_cache": _axis("not_tested", 0, 0, "not exercised"),
    },
    "arms": [
        {
            "name": "m",
            "kernels": None,
            "role": "subject",
            "backend": None,
            "dtype": None,
            "certificate": None,
            "complete": True,
            "verdict": "diverged",
            "prompts": [
                {
                    "id": "p1",
                    "trials": 60,
                    "unique_completions": 2,
                    "modal_count": 55,
                    "minority": {"count": 5, "n": 60, "rate": 1 / 12, "interval_95": [0.04, 0.18]},
                    "diverged": 5,
                    "first_token_divergence": 7,
                    "first_token_position": None,
                    "first_logprob_divergence": None,
                    "first_logits_divergence": None,
                    "max_logprob_gap": None,
                    "max_ulp": None,
                    "margin_at_divergence": 0.001,
                    "divergence_class": None,
                    "completions": [
                        {"count": 55, "text": "the sea was calm", "parts_at": None},
                        {"count": 5, "text": "the sea was rough", "parts_at": 7},
                    ],
                }
            ],
            "axes": {
                "run_to_run": _axis("identical", 20, 0),
                "co_batching": _axis("diverged", 40, 5),
                "prefix_cache": _axis("not_tested", 0, 0, "not exercised"),
            },
            "statistics": {
                "tokens_compared": 600,
                "trials": 60,
                "diverged": 5,
                "non_finite_trials": 0,
                "rate_interval_95": [0.04, 0.18],
                "upper_bound_95": None,
                "diverged_tokens": 5,
                "token_rate_interval_95": [0.04, 0.18],
                "survival": [
                    {"token": 7, "at_risk": 60, "diverged": 5, "share": 0.9167, "low": 0.82, "high": 0.96},
                    {"token": 9, "at_risk": 55, "diverged": 0, "share": 0.9167, "low": 0.82, "high": 0.96},
                ],
            },
            "divergences": [
                {
                    "prompt": "p1",
                    "axis": "co_batching",
                    "level": "2 in flight",
                    "count": 5,
                    "prompt_tokens": None,
                    "index": None,
                    "position": None,
                    "method": "bytes",
                    "interval": [6, 8],
                    "byte_offset": 12,
                    "margin": 0.001,
                    "margin_rank": [2, 600],
                    "median_margin": 1.5,
                    "drift_median": 0.0001,
                    "drift_max": 0.002,
                    "divergence_class": None,
                    "forced": {"reference": 0.001, "other": 0.001},
                    "context": {"common": "the sea was ", "reference": "calm", "other": "rough"},
                }
            ],
        }
    ],
}


@pytest.fixture
def server_report():
    return copy.deepcopy(SERVER)


@pytest.fixture
def poisoned(server_report):
    """The server's report with hostile text wherever text comes from outside."""

    def poison(value, name=""):
        if isinstance(value, dict):
            made = {key: poison(item, key) for key, item in value.items()}
            if name in ("environment", "target", "exercised") or (name == "levels" and made):
                made[HOSTILE] = next(iter(made.values()), HOSTILE)
            return made
        if isinstance(value, list):
            return [poison(item, name) for item in value]
        outside = (
            "id text detail level name common reference other url model target python summary not_shown prompt reason"
        )
        return HOSTILE if isinstance(value, str) and name in outside.split() else value

    return poison(server_report)
