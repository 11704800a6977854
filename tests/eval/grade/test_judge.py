"""Asking a judge: what is asked, what is kept, and what a failure means."""

import asyncio

import pytest

from detharness.errors import UsageError
from detharness.eval.grade.judge import PARAMS, Judge, Line, Question
from detharness.eval.grade.judge_cache import JudgeCache, JudgeIdentity, JudgeKey, load_cache
from detharness.eval.grade.judge_prompt import OWN_TEMPLATE
from detharness.records.canonical import canonical_bytes, parse_json
from detharness.records.digests import sha256_value
from detharness.targets.generation import GenerationError, Reply

IDENTITY = JudgeIdentity("m", PARAMS, OWN_TEMPLATE.id, OWN_TEMPLATE.digest)


class FakeJudge:
    """Answers with ``script(prompt, call number)``: a text, a Reply, or an exception to raise."""

    context_length = None
    accepts_images = False

    def __init__(self, script):
        self.script = script
        self.prompts = []
        self.running = self.most = 0
        self.closed = False

    async def generate(self, request):
        assert request.temperature == PARAMS["temperature"]
        assert request.max_tokens == PARAMS["max_tokens"]
        self.prompts.append(request.messages[0]["content"])
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0)
        self.running -= 1
        made = self.script(self.prompts[-1], len(self.prompts))
        if isinstance(made, Exception):
            raise made
        return made if isinstance(made, Reply) else Reply(text=made, finish_reason="stop")

    async def close(self):
        self.closed = True


def question(number, response="it is 42"):
    return Question(f"row {number}", f"response {number}", lambda: (f"question {number}?", response, "42"))


def ask(script, questions, *, cache=None, repeats=1, concurrency=1):
    fake, kept, pauses = FakeJudge(script), [], []

    async def sleep(seconds):
        pauses.append(seconds)

    line = Line(fake, OWN_TEMPLATE, kept.append, concurrency, sleep)
    judge = Judge(IDENTITY, cache or JudgeCache(), line, repeats=repeats)
    found = asyncio.run(judge.opinions(iter(questions), lambda: None))
    return [found[question] for question in questions], judge, kept, pauses, fake


def gone(kind="http_503", **fields):
    return GenerationError(kind, "it is away", **{"retriable": True, **fields})


def test_a_judge_sees_question_response_and_gold():
    (opinion,), judge, kept, _, fake = ask(lambda prompt, call: "correct: yes", [question(1)])
    assert "question 1?" in fake.prompts[0]
    assert "it is 42" in fake.prompts[0]
    assert opinion.replies[0].correct is True
    assert judge.calls == len(kept) == 1


def test_a_failure_that_may_pass_is_asked_again_and_is_never_a_verdict():
    (opinion,), judge, kept, pauses, _ = ask(
        lambda prompt, call: gone(retry_after=20.0) if call < 3 else "correct: no", [question(1)]
    )
    assert opinion.replies[0].correct is False
    assert (judge.calls, len(kept)) == (3, 1)
    assert pauses == [20.0, 20.0]
    (opinion,), judge, kept, pauses, _ = ask(lambda prompt, call: gone(), [question(1)])
    assert opinion.replies == (None,)
    assert opinion.failure == ("http_503", "it is away")
    assert (judge.calls, kept) == (5, [])
    assert all(low <= pause <= 2 * low for pause, low in zip(pauses, (0.5, 1, 2, 4), strict=True))


def test_a_failure_that_will_not_pass_is_not_asked_again():
    (opinion,), judge, _, pauses, _ = ask(lambda prompt, call: gone("http_401", retriable=False), [question(1)])
    assert (judge.calls, pauses, opinion.replies) == (1, [], (None,))


def test_an_error_message_for_a_reply_is_a_failure_and_is_not_kept():
    (opinion,), judge, kept, _, _ = ask(lambda prompt, call: "[ERROR] judge returned HTTP 500", [question(1)])
    assert opinion.failure[0] == "bad_response"
    assert (judge.calls, kept) == (5, [])


def test_a_judge_that_is_down_is_left_alone_after_ten_questions():
    opinions, judge, _, _, _ = ask(
        lambda prompt, call: gone("connection", retriable=False), [question(number) for number in range(30)]
    )
    assert judge.calls == 10
    assert [opinion.failure[0] for opinion in opinions] == ["connection"] * 10 + ["not_asked"] * 20


@pytest.mark.parametrize("reply", ["perhaps", None, Reply(text="correct: yes", finish_reason="length")])
def test_a_reply_that_says_nothing_clear_is_unparsed_and_kept(reply):
    (opinion,), judge, kept, _, _ = ask(lambda prompt, call: reply or Reply(text=None), [question(1)])
    assert opinion.replies[0].status == "unparsed"
    assert opinion.replies[0].correct is None
    assert (judge.calls, len(kept)) == (1, 1)


def test_what_was_asked_once_is_replayed_without_a_call(tmp_path):
    questions = [question(number) for number in range(5)]
    first, _, kept, _, fake = ask(
        lambda prompt, call: f"correct: {'yes' if '1?' in prompt or '3?' in prompt else 'no'}", questions, concurrency=3
    )
    assert fake.most == 3
    path = tmp_path / "judge.jsonl"
    path.write_bytes(b"".join(canonical_bytes(row) + b"\n" for row in reversed(kept)))
    cache = load_cache(path)
    assert cache.only_judge(path, None) == IDENTITY
    replayed = Judge(IDENTITY, cache, None)
    again = asyncio.run(replayed.opinions(iter(questions), lambda: None))
    assert [again[question] for question in questions] == first
    assert replayed.calls == 0
    other = asyncio.run(replayed.opinions(iter([question(9)]), lambda: None))
    assert next(iter(other.values())).replies == (None,)


def test_repeats_are_asked_one_by_one_and_kept_apart():
    (opinion,), judge, kept, _, _ = ask(
        lambda prompt, call: "correct: yes" if call == 1 else "correct: no", [question(1)], repeats=3
    )
    assert [reply.correct for reply in opinion.replies] == [True, False, False]
    assert [row["repeat"] for row in kept] == [0, 1, 2]
    assert judge.calls == 3


def rows_of(count):
    _, _, kept, _, _ = ask(lambda prompt, call: f"correct: yes {call}", [question(n) for n in range(count)])
    return [canonical_bytes(row) + b"\n" for row in kept]


def test_a_torn_last_line_of_a_cache_is_an_open_question(tmp_path):
    path = tmp_path / "judge.jsonl"
    rows = rows_of(2)
    path.write_bytes(rows[0] + rows[1][:-9])
    assert list(load_cache(path).replies) == [JudgeKey(IDENTITY.digest, "row 0", "response 0", 0)]


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda rows: rows[0].replace(b"yes", b"no "), "line 1: the reply does not fit its digest"),
        (lambda rows: rows[0][:-9] + b"\n" + rows[1], "line 1: this is not one reply"),
        (lambda rows: b'{"schema": "other"}\n', "line 1: the field 'schema'"),
        (lambda rows: b"[]\n", "line 1: each line must be a JSON object"),
    ],
)
def test_a_damaged_cache_is_refused_by_its_line(tmp_path, spoil, sentence):
    path = tmp_path / "judge.jsonl"
    path.write_bytes(spoil(rows_of(2)))
    with pytest.raises(UsageError, match=sentence):
        load_cache(path)


@pytest.mark.parametrize(
    "change",
    [
        {"reply": 5},
        {"finish_reason": ["stop"]},
        {"row_digest": {}},
        {"response_digest": None},
        {"repeat": "0"},
        {"judge": None},
        {"judge": {**IDENTITY.describe(), "model": {}}},
        {"judge": {**IDENTITY.describe(), "params": []}},
    ],
)
def test_a_cached_reply_of_another_form_is_refused_though_its_digest_fits(tmp_path, change):
    path = tmp_path / "judge.jsonl"
    row = {**parse_json(rows_of(1)[0]), **change}
    del row["digest"]
    path.write_bytes(canonical_bytes({**row, "digest": sha256_value(row)}) + b"\n")
    with pytest.raises(UsageError, match="line 1: a field of the reply is missing or of another type"):
        load_cache(path)


def test_a_number_that_no_digest_covers_is_refused(tmp_path):
    path = tmp_path / "judge.jsonl"
    path.write_bytes(rows_of(1)[0].replace(b'"repeat":0', b'"repeat":18446744073709551616'))
    with pytest.raises(UsageError, match=r"line 1: .* does not fit 64 bits: remove the line"):
        load_cache(path)


def test_a_cache_that_contradicts_itself_is_refused(tmp_path):
    path = tmp_path / "judge.jsonl"
    _, _, (other,), _, _ = ask(lambda prompt, call: "correct: no", [question(0)])
    path.write_bytes(rows_of(1)[0] + canonical_bytes(other) + b"\n")
    with pytest.raises(UsageError, match="line 2 contradicts line 1"):
        load_cache(path)


def test_replaying_needs_one_judge(tmp_path):
    path = tmp_path / "judge.jsonl"
    with pytest.raises(UsageError, match="nothing to replay"):
        JudgeCache().only_judge(path, None)
    others = [JudgeIdentity(model, PARAMS, "t", "d") for model in ("a", "b")]
    cache = JudgeCache(judges={judge.digest: judge for judge in others})
    with pytest.raises(UsageError, match=r"several judges \('a', 'b'\)"):
        cache.only_judge(path, None)
    assert cache.only_judge(path, "b") == others[1]
    same = [JudgeIdentity("a", PARAMS, template, "d") for template in ("t", "u")]
    with pytest.raises(UsageError, match="several templates"):
        JudgeCache(judges={judge.digest: judge for judge in same}).only_judge(path, None)
