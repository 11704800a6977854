"""report.html: what a person finds in it, and that nothing from outside becomes more than text."""

from __future__ import annotations

import re

import pytest

from detharness.probes.page.page import PAGE, probe_page, write_page


def test_the_verdict_and_a_plain_sentence_come_first(played, elements):
    text = elements(probe_page(played())).text
    order = [
        "IDENTICAL",
        "The same question got the same answer, whoever else was being served",
        "How long replies stay the same",
        "Prompts",
        "Where replies part",
        "Axes",
        "Environment",
        "What this does not show",
    ]
    places = [text.index(part) for part in order]
    assert places == sorted(places)


def test_a_moved_subject_is_said_so_that_anybody_understands(played, elements):
    text = elements(probe_page(played(faulty=("invariant", "torch"), axes="batch_size"))).text
    assert "DIVERGED" in text
    assert re.search(r"can get another answer: it did in \d+ of \d+ comparisons \([\d.]+ %, 95 % interval", text)
    assert "What made the difference: how many requests were served together." in text


def test_a_server_shows_what_it_can_do_and_an_engine_does_not(played, server_report, elements):
    text = elements(probe_page(server_report)).text
    for said in (
        "What the server can do",
        "● works",
        "✕ ignored",
        "○ absent",
        "□ not tested",
        "Fisher's exact test, two-sided: p = 0.16",
        "solo: 0 of 20 comparisons",
        "loaded: 5 of 40 comparisons",
        "token 6 to 8, byte 12",
        "Teacher-forced by the server",
    ):
        assert said in text
    engine = elements(probe_page(played())).text
    assert "What the server can do" not in engine
    assert "Solo against loaded" not in engine


def test_a_divergence_shows_the_common_text_then_both_continuations(server_report):
    page = probe_page(server_report)
    assert "<pre>the sea was <mark>calm</mark></pre>" in page
    assert "<pre>the sea was <mark>rough</mark></pre>" in page
    assert "rank 2 from the smallest of the run&#x27;s 600 margins, whose median is 1.5" in page
    assert "among the narrowest 5.0 %: a near tie, which rounding can flip" in page


def test_a_state_is_told_by_shape_and_word_and_not_by_colour_alone(server_report):
    page = probe_page(server_report)
    assert re.search(r'class="bad">✕ diverged: 5 of 40', page)
    assert re.search(r'class="good">● identical: 0 of 20', page)
    assert re.search(r'class="warn">□ not tested: not exercised', page)


def test_a_cause_is_named_where_one_was_found(server_report, elements):
    assert "Causes" not in elements(probe_page(server_report)).text
    server_report["causes"] = [
        {
            "arm": "torch/fp32",
            "axis": "batch_size",
            "prompt": "p",
            "status": "found",
            "operator": "attention",
            "layer": 3,
            "position": 41,
            "plan": ["attention:64"],
            "schedule": {"reference": {"rows_in_step": 1}, "trial": {"rows_in_step": 4}},
            "ulp_histogram": [{"ulp": 1, "count": 12}],
        },
        {"arm": "torch/fp32", "axis": "slot", "prompt": "p", "status": "not_reproduced", "operator": None},
    ]
    text = elements(probe_page(server_report)).text
    assert "the first operator that differs is attention, layer 3, at position 41" in text
    assert "schedule.trial.rows_in_step" in text
    assert "ulp: 1" in text
    assert "agree when every operator is observed" in text


def test_the_page_needs_nothing_but_itself_and_runs_nothing(played, server_report, elements):
    for report in (played(), server_report):
        found = elements(probe_page(report))
        assert not {"script", "link", "img", "iframe", "object", "embed", "form", "base"} & set(found.names)
        links = [value for _, key, value in found.attributes if key in ("src", "href", "action", "data", "srcset")]
        assert set(links) == {"#not-shown"}
        policy = next(value for _, key, value in found.attributes if "default-src" in (value or ""))
        assert policy.startswith("default-src 'none'; style-src 'sha256-")
        assert not any(key == "style" or key.startswith("on") for _, key, _ in found.attributes)


def test_hostile_text_stays_text(poisoned, server_report, elements):
    page = probe_page(poisoned)
    found, calm = elements(page), elements(probe_page(server_report))
    assert not {"script", "img"} & set(found.names)
    assert found.names.count("svg") == calm.names.count("svg")
    assert "<script>alert(1)</script>" in found.text
    for unseen in ("\x1b", "\u202e", "\x00", "\ud800"):
        assert unseen not in page


def test_ids_are_unique_and_every_plot_has_its_words(played, elements):
    found = elements(probe_page(played(dtype="fp32,bf16", max_tokens=40)))
    ids = [value for _, key, value in found.attributes if key == "id"]
    assert len(ids) == len(set(ids))
    plots = [value for name, key, value in found.attributes if name == "svg" and key == "aria-labelledby"]
    assert len(plots) == 4
    assert all(set(plot.split()) <= set(ids) for plot in plots)
    assert "All 14 comparisons stayed the same through token 15" in found.text


@pytest.mark.parametrize(("arms", "text"), [(1, "<\x00"), (6, '"')])
def test_the_worst_of_reports_stays_below_5_mb_and_says_what_it_leaves_out(server_report, arms, text):
    long = text * (1_200 // len(text))
    arm = server_report["arms"][0]
    (prompt,), (row,) = arm["prompts"], arm["divergences"]
    completions = [{"count": 1, "text": long, "parts_at": 3}] * 30
    arm["prompts"] = [
        {**prompt, "id": f"p{n}{long}", "unique_completions": 30, "completions": completions} for n in range(400)
    ]
    context = {"common": long, "reference": long, "other": long}
    arm["divergences"] = [{**row, "context": context, "level": f"{n}{long}"} for n in range(300)]
    axis = arm["axes"]["co_batching"]
    axis["levels"] = {f"{n}{long}": {"trials": 1, "diverged": 0} for n in range(300)}
    axis["exercised"] = {f"{n}{long}": n for n in range(100)}
    point = arm["statistics"]["survival"][0]
    arm["statistics"]["survival"] = [{**point, "token": token} for token in range(1_000)]
    server_report["arms"] = [{**arm, "name": f"{number}{long}"} for number in range(arms)]
    for part in ("target", "environment", "effective_config"):
        server_report[part] = {f"k{n}{long}": long for n in range(500)} | {"target": long}
    for part in ("summary", "not_shown"):
        server_report[part] = [long] * 100
    server_report["capabilities"] *= 100
    for one in server_report["capabilities"]:
        one |= {"name": long, "detail": long}
    found = server_report["findings"]["co_batching"] | {f"{n}{long}": long for n in range(200)}
    server_report["findings"] = {f"{n}{long}": found for n in range(20)}
    cause = {f"{n}{long}": long for n in range(200)} | {"operator": long, "position": 3, "arm": long, "prompt": long}
    server_report["causes"] = [cause] * 100
    page = probe_page(server_report)
    assert 500_000 < len(page.encode()) < 5_000_000
    assert f"{400 - 300 // arms} more prompts are in report.json" in page
    assert f"{300 - 240 // arms} more places are in report.json" in page


def test_a_run_that_was_cut_short_says_so(played, elements):
    report = {**played(), "complete": False}
    assert "cut short" in elements(probe_page(report)).text


def test_nothing_compared_is_nothing_claimed(server_report, elements):
    arm = server_report["arms"][0]
    server_report["verdict"] = arm["verdict"] = "not_tested"
    arm["statistics"] |= {"trials": 0, "diverged": 0, "diverged_tokens": 0, "survival": []}
    arm |= {"prompts": [{**arm["prompts"][0], "completions": [], "minority": None, "unique_completions": 0}]}
    arm["divergences"] = []
    text = elements(probe_page(server_report)).text
    assert "NOT TESTED" in text
    assert "Nothing was compared, so nothing is claimed." in text


def test_same_report_same_bytes_beside_the_report(played, tmp_path):
    report = played()
    write_page(tmp_path, report)
    assert (tmp_path / PAGE).read_bytes() == probe_page(report).encode()
