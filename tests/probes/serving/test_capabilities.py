"""A field that is accepted is not believed until it works: each thing a server may do, done, left out and pretended."""

from __future__ import annotations

import dataclasses

import pytest

from detharness.errors import UsageError
from detharness.probes.serving import judgements
from detharness.probes.serving.capabilities import MOST_REQUESTS
from detharness.targets.serving import GenerationError, ServedReply, ServedToken


def found(probe, server, **settings):
    report = probe(server, trials=1, max_tokens=4, traffic="needle", **settings).report
    return {one["name"]: one["status"] for one in report["capabilities"]}


def test_everything_works_where_it_does(probe, fake_server):
    names = found(probe, fake_server())
    assert set(names.values()) == {"works"}
    assert list(names) == [
        *("token ids", "logprobs", "bytes", "usage", "seed", "streaming", "prefix cache", "warm prefix", "cache salt"),
        *("tokenize", "score", "fingerprint"),
    ]


@pytest.mark.parametrize(
    ("server", "expected"),
    [
        ({"ids": False}, {"token ids": "ignored", "logprobs": "works"}),
        ({"logprobs": False}, {"logprobs": "ignored", "bytes": "not_tested", "token ids": "works"}),
        ({"usage": False}, {"usage": "absent", "token ids": "works"}),
        ({"seeds": False}, {"seed": "ignored"}),
        ({"cache": False}, {"prefix cache": "absent", "warm prefix": "not_tested", "cache salt": "not_tested"}),
        ({"cached_told": False}, {"prefix cache": "not_tested", "cache salt": "not_tested"}),
        ({"salts": False}, {"prefix cache": "works", "cache salt": "ignored"}),
        ({"after_hit": 1e-7}, {"prefix cache": "works", "warm prefix": "ignored"}),
        ({"by_itself": 1.0}, {"streaming": "not_tested", "warm prefix": "not_tested", "seed": "ignored"}),
        ({"tokenizes": False}, {"tokenize": "absent"}),
        ({"scores": False}, {"score": "absent"}),
    ],
)
def test_what_does_not_work_is_told_by_its_status(probe, fake_server, server, expected):
    names = found(probe, fake_server(**server))
    assert {name: names[name] for name in expected} == expected


def test_a_field_that_is_refused_is_absent_and_never_sent_again(probe, fake_server):
    server = fake_server()
    refusal = GenerationError("refused", "unknown field logprobs", retriable=False)
    server.error = lambda number: refusal if server.asked[number - 1].logprobs is not None else None
    names = found(probe, server)
    assert (names["logprobs"], names["token ids"]) == ("absent", "works")
    assert sum(request.logprobs is not None for request in server.asked) == 1


def test_what_works_is_asked_for_and_what_does_not_is_not(probe, fake_server):
    server = fake_server(ids=False)
    found(probe, server)
    watched = [request for request in server.asked if request.max_tokens == 4 and request.logprobs is not None]
    assert watched
    assert not any(request.token_ids_back for request in watched)


def test_no_more_requests_are_made_than_the_plan_says(probe, fake_server):
    server = fake_server()
    probe(server, max_requests=MOST_REQUESTS + 1)  # One for the description.
    kinds = {request.max_tokens for request in server.asked}
    assert kinds == {24}  # Not one request of a play was within the budget.
    assert len(server.asked) + sum(server.calls.values()) == MOST_REQUESTS + 1


def test_a_server_that_answers_nothing_plain_is_a_sentence_and_leaves_nothing(probe, fake_server, tmp_path):
    refusal = GenerationError("http_404", "the server answered 404: no such model", retriable=False)
    with pytest.raises(UsageError, match="plain request for the model 'm': the server answered 404: no such model"):
        probe(server := fake_server(error=lambda number: refusal))
    assert not (tmp_path / "run-1").exists()
    assert len(server.asked) == 1
    assert server.closed


TOKEN = ServedToken("a", raw=b"a", token_id=1, logprob=-0.5, top=(("a", -0.5), ("b", -0.9)))
REPLY = ServedReply(text="aa", token_ids=(1, 1), tokens=(TOKEN, TOKEN), prompt_tokens=3, completion_tokens=2)


def changed(**fields):
    return dataclasses.replace(REPLY, **fields)


@pytest.mark.parametrize(
    ("judged", "status"),
    [
        (judgements.judge_ids(REPLY), "works"),
        (judgements.judge_ids(changed(token_ids=(1,))), "ignored"),
        (judgements.judge_logprobs(changed(tokens=(TOKEN, ServedToken("a")))), "ignored"),
        (judgements.judge_logprobs(changed(tokens=(ServedToken("a", logprob=0.0),) * 2)), "ignored"),
        (judgements.judge_bytes(changed(tokens=(TOKEN, ServedToken("a", logprob=-0.5)))), "absent"),
        (judgements.judge_bytes(changed(text="ab")), "ignored"),
        (judgements.judge_usage(REPLY, 4), "works"),
        (judgements.judge_usage(changed(completion_tokens=5), 4), "ignored"),
        (judgements.judge_usage(changed(completion_tokens=0), 4), "ignored"),
        (judgements.judge_stream(REPLY, changed(chunks=3), stable=True), "works"),
        (judgements.judge_stream(REPLY, changed(chunks=None), stable=True), "ignored"),
        (judgements.judge_stream(REPLY, changed(chunks=2, text="ab"), stable=True), "ignored"),
        (judgements.judge_stream(REPLY, changed(chunks=2, tokens=None), stable=True), "works"),
        (judgements.judge_stream(REPLY, changed(chunks=2), stable=False), "not_tested"),
        (judgements.judge_stream(REPLY, None, stable=True), "absent"),
        (judgements.judge_seed([REPLY] * 4 + [None], stable=True), "absent"),
        (judgements.judge_seed([REPLY] * 5, stable=True), "not_tested"),
        (judgements.judge_seed([REPLY, REPLY, REPLY, changed(token_ids=(1, 2)), REPLY], stable=True), "ignored"),
        (judgements.judge_score((TOKEN, ServedToken("b"))), "ignored"),
        (judgements.judge_salt(changed(cached_tokens=16), changed(cached_tokens=16)), "ignored"),
        (judgements.judge_salt(None, REPLY), "absent"),
    ],
)
def test_a_judgement_believes_what_it_sees(judged, status):
    assert judged[0] == status
    assert judged[1]
