"""The words and tables over reports of toy runs."""

from __future__ import annotations

import io
from contextlib import nullcontext

from rich.console import Console

from detharness.probes.runner import run
from detharness.probes.tables import print_report
from detharness.probes.wording import not_shown


def play(plan):
    return run(plan, lambda total: nullcontext(lambda note: None), lambda: None).report


def printed(report):
    stream = io.StringIO()
    print_report(Console(file=stream, width=200, markup=False, emoji=False, highlight=False), report)
    return stream.getvalue()


def test_statistics_of_a_clean_run_bound_the_rate(mini_target, make_plan):
    statistics = play(make_plan(mini_target(), kernels="invariant", axes="slot"))["arms"][0]["statistics"]
    assert statistics["diverged"] == statistics["diverged_tokens"] == 0
    low, high = statistics["rate_interval_95"]
    assert low == 0.0
    assert 0 < statistics["upper_bound_95"] < high + 0.05
    assert statistics["survival"][-1]["share"] == 1.0


def test_a_prompt_counts_its_replies_and_names_the_first_difference(mini_target, make_plan):
    report = play(make_plan(mini_target(fault="rows counted"), kernels="invariant", axes="batch_size"))
    prompt = next(prompt for prompt in report["arms"][0]["prompts"] if prompt["id"] == "long")
    # Solo, and sizes 2, 3, 5 and 9, each of which counts its rows and so gives another reply.
    assert prompt["trials"] == prompt["unique_completions"] == 5
    assert prompt["modal_count"] == 1
    assert (prompt["minority"]["count"], prompt["minority"]["n"], prompt["minority"]["rate"]) == (4, 5, 0.8)
    assert prompt["minority"]["interval_95"][0] < 0.8 < prompt["minority"]["interval_95"][1]
    assert prompt["first_token_divergence"] == 0
    assert prompt["completions"][0]["parts_at"] is None
    assert all(reply["parts_at"] == 0 for reply in prompt["completions"][1:])
    statistics = report["arms"][0]["statistics"]
    assert statistics["diverged"] == statistics["trials"] == report["axes"]["batch_size"]["trials"]
    assert statistics["upper_bound_95"] is None
    assert statistics["survival"][-1]["share"] == 0.0


def test_shorter_replies_are_not_counted_as_other_ones(mini_target, make_plan):
    report = play(make_plan(mini_target(), kernels="invariant", dtype="bf16", max_tokens=40))
    assert {prompt["unique_completions"] for prompt in report["arms"][0]["prompts"]} == {1}


def test_words_for_a_control_that_moved_and_a_subject_that_held(mini_target, make_plan):
    report = play(make_plan(mini_target(fault="slot read", faulty=("torch",))))
    text = printed(report)
    assert "Other people's traffic changed nothing under the invariant kernels over batch_size and slot." in text
    assert "on slot" in text
    assert "one prompt got" in text
    assert "With 95 % confidence the rate of moved trials" in text
    assert "Not shown by this run:" in text
    assert "The control arm did not move" not in text


def test_a_control_that_did_not_move_is_said_in_words(mini_target, make_plan):
    assert "The control arm did not move" in printed(play(make_plan(mini_target())))


def test_a_diverged_subject_is_said_in_words(mini_target, make_plan):
    report = play(make_plan(mini_target(fault="slot read"), kernels="invariant", axes="slot"))
    assert "do not rely on equal outputs" in printed(report)


def test_text_from_a_model_reaches_the_terminal_escaped(mini_target, make_plan):
    class Loud(mini_target):
        def detokenize(self, token_ids):
            return " ".join(f"\x1b[31m{token}\u202e" for token in token_ids)

    text = printed(play(make_plan(Loud(fault="rows counted"), kernels="invariant", axes="batch_size")))
    assert r"\x1b[31m" in text
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_amplified_only_with_the_packaged_prompts(mini_target, make_plan):
    report = play(make_plan(mini_target(), axes="slot", kernels="invariant"))
    assert report["amplified"] is False
    plan = make_plan(mini_target(context_length=5000), prompts=None, out=None)
    assert plan.manifest["amplified"] is True


def test_broken_logits_are_named_beside_equal_bits(mini_target, make_plan):
    report = play(make_plan(mini_target(), kernels="invariant", axes="slot"))
    assert report["arms"][0]["statistics"]["non_finite_trials"] == 0
    assert not any("NaN" in line for line in not_shown(report))
    report["arms"][0]["statistics"]["non_finite_trials"] = 1
    assert any("NaN or infinite logits stood in compared rows of invariant/fp32" in line for line in not_shown(report))
