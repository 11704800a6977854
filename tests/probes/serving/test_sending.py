"""What is sent, when, beside whom, and when it stops: budgets that are never exceeded, patience that is asked for."""

from __future__ import annotations

import json
import os
import signal
from contextlib import nullcontext

import pytest

from detharness.errors import UsageError
from detharness.probes.serving.durations import Durations
from detharness.probes.serving.report import exit_code
from detharness.probes.serving.runner import Display
from detharness.probes.serving.settings import ServerSettings, prepare
from detharness.records.jsonl import read_jsonl
from detharness.targets.serving import GenerationError


def sent(server):
    return len(server.asked) + sum(server.calls.values())


def trials(outcome):
    return [row.value for row in read_jsonl(outcome.folder / "trials.jsonl")]


BUSY = GenerationError("http_429", "slow down", retriable=True, retry_after=7.0)
BUSY_UNSAID = GenerationError("http_429", "slow down", retriable=True)
LOST = GenerationError("connection", "the connection failed", retriable=True)


@pytest.mark.parametrize("most", [1, 2, 18, 19, 40, 77])
def test_a_budget_of_requests_is_never_exceeded(probe, fake_server, most):
    server = fake_server(ids=False, logprobs=False, with_company=1e-3)  # So that the tokenizer is asked, too.
    outcome = probe(server, max_requests=most)
    assert sent(server) == most
    assert outcome.report["ended"] == "requests"
    assert not outcome.report["complete"]
    assert outcome.report == json.loads((outcome.folder / "report.json").read_bytes())


def test_every_try_counts(probe, fake_server):
    server = fake_server(error=lambda number: BUSY if number % 2 else None)
    outcome = probe(server, max_requests=50)
    assert sent(server) == 50
    assert outcome.report["ended"] == "requests"


@pytest.mark.parametrize("most", [0.5, 30.0, 61.5])
def test_a_budget_of_seconds_is_never_exceeded_and_what_is_in_flight_is_given_up(probe, fake_server, most):
    server = fake_server(seconds=2.0)
    outcome = probe(server, max_seconds=most)
    assert json.loads((outcome.folder / "timing.json").read_bytes())["seconds"] <= most + 1e-6  # Sums of the clock.
    assert outcome.report["ended"] == "seconds"
    assert max(server.times) <= most


def test_a_run_without_a_budget_sends_what_its_plan_says_and_nothing_else(probe, fake_server):
    server = fake_server()
    outcome = probe(server)
    manifest = json.loads((outcome.folder / "manifest.json").read_bytes())
    planned = sum(play["requests"] for play in manifest["plays"])
    assert sent(server) == planned + 18  # What the server can do; nothing parted, so nothing was looked at again.


def test_a_busy_server_is_left_alone_for_as_long_as_it_asks(probe, fake_server):
    server = fake_server(error=lambda number: BUSY if number == 30 else None)
    outcome = probe(server)
    told = server.times[29] + server.seconds
    assert all(time <= told or time >= told + 7.0 for time in server.times)
    assert outcome.report["errors"] == []
    assert json.loads((outcome.folder / "timing.json").read_bytes())["waited_for_server"] == pytest.approx(7.0)


def test_without_a_time_to_come_back_each_wait_is_longer(probe, fake_server):
    server = fake_server(error=lambda number: BUSY_UNSAID if number <= 3 else None)
    probe(server)
    waits = [later - earlier - server.seconds for earlier, later in zip(server.times, server.times[1:4], strict=False)]
    assert waits == [1.0, 2.0, 4.0]


def test_a_server_that_is_always_busy_is_a_sentence(probe, fake_server):
    with pytest.raises(UsageError, match="slow down"):
        probe(fake_server(error=lambda number: BUSY_UNSAID))


def test_a_lost_request_is_a_row_and_never_a_reply(probe, fake_server):
    server = fake_server(error=lambda number: LOST if number > 30 and number % 5 == 0 else None)
    outcome = probe(server)
    lost = [row for row in trials(outcome) if row["kind"] == "error"]
    assert len(lost) == sum(number > 30 for number in range(0, len(server.asked) + 1, 5)) > 0
    assert outcome.report["errors"] == [{"kind": "connection", "count": len(lost), "first": str(LOST)}]
    assert outcome.report["verdict"] == "identical"
    assert outcome.report["complete"]
    assert any("got no reply" in line for line in outcome.report["summary"])


def test_a_server_that_dies_ends_the_run_with_a_report_and_exit_3(probe, fake_server):
    server = fake_server(error=lambda number: LOST if number >= 60 else None)
    outcome = probe(server)
    assert outcome.report["ended"] == "server"
    assert outcome.report["verdict"] == "identical"
    assert len(server.asked) < 59 + 20 + 8  # Twenty in a row, and those that were in flight with the twentieth.
    assert exit_code(outcome.report, interrupted=False) == 3


def test_a_reference_that_was_lost_is_the_next_reply_alone(probe, fake_server):
    # 17 requests find out what it can do (two of them no asks), 4 warm it up; the first solo reply is lost.
    server = fake_server(error=lambda number: LOST if number == 20 else None)
    outcome = probe(server)
    assert {row["prompt"] for row in trials(outcome) if row["kind"] == "reference"} == {"one", "two"}
    assert outcome.report["verdict"] == "identical"


@pytest.mark.parametrize("limit", [2, 3, 5])
def test_a_closed_loop_has_so_many_in_flight_and_no_more(probe, fake_server, limit):
    server = fake_server()
    probe(server, traffic="concurrency", concurrency=str(limit))
    assert server.most_in_flight == limit


def test_two_in_flight_are_always_among_them(probe, fake_server):
    outcome = probe(fake_server(), concurrency="5")
    assert {"concurrency-2", "concurrency-5"} <= set(outcome.report["arms"][0]["axes"]["co_batching"]["levels"])


def test_every_loaded_reply_had_company_and_no_solo_one(probe, fake_server):
    for row in trials(probe(fake_server(seconds=0.3), rate=3.0)):
        if row["kind"] == "trial" and row["exercised"]:
            assert ("alone" in row["exercised"]) == (row["role"] == "solo")
            assert row["exercised"].get("beside", 1) > 0


def test_arrivals_that_meet_nobody_do_not_count(probe, fake_server):
    outcome = probe(fake_server(seconds=1e-6), traffic="open-loop", rate=0.01, axes="co_batching")
    axis = outcome.report["arms"][0]["axes"]["co_batching"]
    assert (axis["status"], axis["trials"]) == ("not_tested", 0)
    assert axis["not_exercised"] > 0
    assert exit_code(outcome.report, interrupted=False) == 3


@pytest.mark.parametrize("seconds", [0.001, 100.0])
def test_open_loop_arrivals_keep_their_times_however_slow_the_replies_are(probe, fake_server, tmp_path, seconds):
    server = fake_server(seconds=seconds)
    outcome = probe(server, traffic="open-loop", rate=50.0, trials=1)
    settings = ServerSettings(
        model="m",
        prompts=tmp_path / "prompts.jsonl",
        nonce="c0ffee",
        max_tokens=24,
        traffic="open-loop",
        rate=50.0,
        trials=1,
    )
    (play,) = [play for play in prepare(settings).plays if play.pace == "open loop"]
    due = [ask.at for ask in play.asks]
    starts = [time - due[0] for time in server.times]
    came = [[time - start for time in server.times[first : first + len(due)]] for first, start in enumerate(starts)]
    assert any(times == pytest.approx(due) for times in came)  # Sums of the clock, for one of all beginnings.
    lateness = json.loads((outcome.folder / "timing.json").read_bytes())["send_lateness"]
    assert lateness["n"] == len(due) == 6
    assert lateness["max"] < 1e-6
    assert (server.most_in_flight == 6) == (seconds > 1)


def test_the_same_seed_sends_the_same_in_the_same_order_and_another_seed_does_not(probe, fake_server):
    servers = [fake_server(), fake_server(), fake_server()]
    for server, seed in zip(servers, (3, 3, 4), strict=True):
        probe(server, seed=seed)
    asked = [[(one.messages, one.max_tokens, one.cache_salt) for one in server.asked] for server in servers]
    assert asked[0] == asked[1]
    assert asked[0] != asked[2]


def test_the_first_interrupt_waits_for_what_is_in_flight_and_reports(probe, fake_server):
    server = fake_server()

    def interrupt(number):
        if number == 40:
            os.kill(os.getpid(), signal.SIGINT)

    said = []
    server.error = interrupt
    display = Display(
        progress=lambda total: nullcontext(lambda note: None),
        capabilities=lambda rows: None,
        on_interrupt=lambda: said.append(len(server.asked)),
    )
    outcome = probe(server, display=display)
    assert outcome.interrupted
    assert outcome.report["ended"] == "interrupted"
    assert said == [len(server.asked)]  # Nothing was sent after it.
    replies = [row.value for row in read_jsonl(outcome.folder / "replies.jsonl")]
    assert len(replies) + 15 == len(server.asked)  # 15 found out what it can do; every other reply was waited for.
    assert exit_code(outcome.report, interrupted=True) == 130
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_before_anything_has_begun_stops_at_once(probe, fake_server, tmp_path, monkeypatch):
    async def describe(self):
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(fake_server, "describe", describe)
    server = fake_server()
    with pytest.raises(KeyboardInterrupt):
        probe(server)
    assert server.closed
    assert not (tmp_path / "run-1").exists()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_second_interrupt_stops_at_once_and_the_records_stay(probe, fake_server, tmp_path):
    server = fake_server()

    def interrupt(number):
        if number == 40:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    server.error = interrupt
    with pytest.raises(KeyboardInterrupt):
        probe(server)
    assert [row.value["kind"] for row in read_jsonl(tmp_path / "run-1" / "trials.jsonl")].count("reference") == 2
    assert not (tmp_path / "run-1" / "report.json").exists()
    assert server.closed
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_fault_of_ours_is_no_row(probe, fake_server):
    with pytest.raises(ZeroDivisionError):
        probe(fake_server(error=lambda number: ZeroDivisionError() if number == 50 else None))


def test_quantiles_are_exact_to_two_percent_in_bounded_memory():
    durations = Durations()
    for number in range(1, 100_001):
        durations.add(number / 1000)
    assert durations.quantile(0.5) == pytest.approx(50.0, rel=0.02)
    assert durations.summary()["p99"] == pytest.approx(99.0, rel=0.02)
    assert durations.summary()["max"] == 100.0
    assert len(durations._buckets) < 1000
    assert Durations().summary() == {"n": 0, "median": None, "p99": None, "max": None}
