"""A run graded as a whole: coverage, what is refused, and that order and repetition change nothing."""

import asyncio
import itertools
import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from detharness.errors import UsageError
from detharness.eval.grade.command import grade
from detharness.eval.grade.settings import GradeSettings, plan_grade
from detharness.eval.runs import open_run
from detharness.records.canonical import parse_json
from detharness.targets.generation import GenerationError, Reply

RIGHT, WRONG, NONE = "The answer is \\boxed{33}.", "The answer is \\boxed{12}.", "I do not know."


class ScriptedJudge:
    """Says yes to every response that holds "right", no to others; raises or mumbles where told to."""

    def __init__(self, reply=lambda prompt: "correct: yes" if "right" in prompt else "correct: no"):
        self.reply = reply
        self.calls = 0

    async def generate(self, request):
        self.calls += 1
        await asyncio.sleep(0)
        made = self.reply(request.messages[0]["content"])
        if isinstance(made, Exception):
            raise made
        return Reply(text=made, finish_reason="stop")

    async def close(self):
        pass


def run_grade(folder, scripted=None, started=lambda digests: None, **options):
    plan = plan_grade(open_run(folder), GradeSettings(**options))
    return grade(plan, lambda url, model: scripted, started, lambda total: nullcontext(lambda note: None))


def verdicts_of(folder):
    return [parse_json(line) for line in (folder / "verdicts.jsonl").read_bytes().splitlines()]


def tasks_of(runs, count, **fields):
    return [runs.row(f"t{number}", line=number + 1, **fields) for number in range(count)]


def test_a_complete_run_has_a_score_and_exit_code_0(runs):
    rows = tasks_of(runs, 2)
    replies = [(rows[0], 0, RIGHT), (rows[0], 1, WRONG), (rows[1], 0, RIGHT), (rows[1], 1, NONE)]
    folder = runs.write(
        rows, [runs.answer(*reply) for reply in replies], samples=2, answer_kind="integer", matches_published=True
    )
    seen = []
    outcome = run_grade(folder, started=seen.append)
    assert (outcome.exit_code, outcome.report["pass_at_1"]) == (0, 0.5)
    assert [(row["verdict"], row["extracted"]) for row in verdicts_of(folder / "grade")] == [
        ("correct", 33),
        ("incorrect", 12),
        ("correct", 33),
        ("no_answer", None),
    ]
    assert outcome.report["n_used"] == {"min": 2, "max": 2}
    assert outcome.report["matches_published"] is True
    assert outcome.report["tasks"][1] == {
        "task_id": "t1",
        "modality": "text",
        "required": 2,
        "n_used": 2,
        "correct": 1,
    }
    assert seen == [outcome.digests] == [open_run(folder).file_digests()]
    assert "report.html" in {path.name for path in (folder / "grade").iterdir()}


def test_an_incomplete_run_has_none_and_exit_code_1(runs):
    """2 right, 4 wrong, 2 that ended in errors: never 2/6."""
    row = runs.row()
    answers = [runs.answer(row, sample, RIGHT if sample < 2 else WRONG) for sample in range(6)]
    folder = runs.write([row], [*answers, runs.failure(row, 6), runs.failure(row, 7)], samples=8, answer_kind="integer")
    outcome = run_grade(folder)
    assert (outcome.exit_code, outcome.report["pass_at_1"]) == (1, None)
    assert outcome.report["bounds"] == {"lower": 2 / 8, "upper": 4 / 8}
    assert outcome.report["counts"]["errors"] == 2
    assert outcome.report["coverage"]["missing"] == 0
    assert [row["verdict"] for row in verdicts_of(folder / "grade")[6:]] == ["error", "error"]


def test_a_success_after_an_error_counts_with_both_attempts(runs):
    row = runs.row()
    folder = runs.write([row], [runs.failure(row), runs.answer(row, attempt=1)], answer_kind="integer")
    outcome = run_grade(folder)
    assert outcome.exit_code == 0
    assert outcome.report["counts"]["retried"] == 1
    (verdict,) = verdicts_of(folder / "grade")
    assert (verdict["verdict"], verdict["attempts"]) == ("correct", 2)


def test_a_conflict_is_refused_and_nothing_is_written(runs):
    row = runs.row()
    folder = runs.write([row], [runs.answer(row, 0, RIGHT), runs.answer(row, 0, WRONG)], answer_kind="integer")
    with pytest.raises(UsageError, match=r"generations\.jsonl, line 1 and generations\.jsonl, line 2"):
        run_grade(folder)
    assert list((folder / "grade").iterdir()) == []


def test_damaged_and_foreign_records_are_counted_and_do_not_count(runs):
    row, stranger = runs.row(), runs.row("nobody")
    joined = runs.line(runs.answer(row, 0))[:-1] + runs.line(runs.answer(row, 1))
    edited = runs.line(runs.answer(row, 2)).replace(b"{33}", b"{34}")
    torn = runs.line(runs.answer(row, 3))[:-9]
    folder = runs.write(
        [row], [joined, runs.answer(stranger), runs.answer(row, 0), edited, torn], samples=4, answer_kind="integer"
    )
    report = run_grade(folder).report
    counts = {name: report["counts"][name] for name in ("duplicates", "extra", "altered", "joined_lines", "torn_lines")}
    assert counts == dict.fromkeys(counts, 1)
    assert report["extra"] == [["nobody", 0]]
    assert (report["coverage"]["present"], report["coverage"]["missing"]) == (2, 2)
    assert {warning["code"] for warning in report["warnings"]} == {
        "altered_records",
        "extra_records",
        "torn_lines",
        "replay_suspected",
    }


def test_shards_beside_a_merged_file_do_not_count_twice(runs):
    row = runs.row()
    folder = runs.write(
        [row], [runs.answer(row, sample, f"{sample} {RIGHT}") for sample in range(2)], samples=2, answer_kind="integer"
    )
    alone = run_grade(folder).report
    shutil.copy(folder / "generations.jsonl", folder / "generations-0.jsonl")
    both = run_grade(folder)
    assert both.report["counts"]["duplicates"] == 2
    assert set(both.digests) == {"generations.jsonl", "generations-0.jsonl"}
    for name in ("pass_at_1", "generation_root", "coverage"):
        assert both.report[name] == alone[name]


def test_the_gold_letter_is_the_recorded_one(runs):
    rows = [runs.row(f"t{number}", "C", options=("w", "x", "y", "z")) for number in range(20)]
    answers = [runs.answer(row, 0, f"Answer: C. {row.task_id}", task="gpqa-diamond") for row in rows]
    made = [
        runs.write(rows, answers, task="gpqa-diamond", answer_kind="letter", shuffle_seed=seed, name=f"seed{seed}")
        for seed in (0, 1)
    ]
    reports = [run_grade(folder).report for folder in made]
    assert reports[0] == reports[1]
    assert reports[0]["pass_at_1"] == 1.0
    (warning,) = reports[0]["warnings"]
    assert (warning["code"], warning["histogram"]) == ("gold_letter_skew", {"C": 20})


NUMBERS = itertools.count()
RECORDS = [(sample, kind) for sample in range(4) for kind in ("answer", "answer", "failure")]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.randoms(use_true_random=False))
def test_the_order_of_records_changes_no_byte(runs, order):
    rows = tasks_of(runs, 3)
    records = [
        runs.answer(row, sample, f"{row.task_id} {sample // 2} {RIGHT if sample % 2 else WRONG}")
        if kind == "answer"
        else runs.failure(row, sample)
        for row in rows
        for sample, kind in RECORDS
    ]
    records += [runs.answer(runs.row("nobody"), sample) for sample in range(2)]
    shuffled = list(records)
    order.shuffle(shuffled)
    made = [
        runs.write(rows, chosen, samples=4, answer_kind="integer", name=f"run{next(NUMBERS)}")
        for chosen in (records, shuffled)
    ]
    outcomes = [run_grade(folder) for folder in made]
    assert outcomes[0].report["counts"]["duplicates"] == 12
    for name in ("report.json", "verdicts.jsonl", "report.html"):
        first, second = ((folder / "grade" / name).read_bytes() for folder in made)
        assert first == second, name


def test_grading_again_changes_no_byte(runs):
    row = runs.row()
    folder = runs.write([row], [runs.answer(row, 0), runs.failure(row, 1)], samples=2, answer_kind="integer")
    kept = []
    for _ in range(2):
        run_grade(folder)
        kept.append({name: (folder / "grade" / name).read_bytes() for name in ("report.json", "verdicts.jsonl")})
    assert kept[0] == kept[1]
    assert str(folder).encode() not in kept[0]["report.json"]


def test_a_file_that_changes_under_the_grader_is_refused(runs):
    row = runs.row()
    folder = runs.write([row], [runs.answer(row)], answer_kind="integer")

    def append(digests):
        with (folder / "generations.jsonl").open("ab") as file:
            file.write(runs.line(runs.failure(row)))

    with pytest.raises(UsageError, match="changed while they were graded"):
        run_grade(folder, started=append)
    assert list((folder / "grade").iterdir()) == []


def hle(runs, count, images=0):
    rows = [
        runs.row(
            f"h{number}",
            "42",
            modality="image" if number >= count else "text",
            extra={"answer_type": "exactMatch"},
        )
        for number in range(count + images)
    ]
    return rows


def hle_answer(runs, row, answer, confidence=90):
    text = f"Explanation: {row.task_id}\nExact Answer: {answer}\nConfidence: {confidence}%"
    return runs.answer(row, 0, text, task="hle")


def test_text_can_be_complete_without_images(runs):
    rows = hle(runs, 3, images=2)
    folder = runs.write(rows, [hle_answer(runs, row, "42") for row in rows[:3]], task="hle", answer_kind="hle")
    report = run_grade(folder).report
    parts = report["coverage"]["by_modality"]
    assert (parts["text"]["coverage_complete"], parts["text"]["pass_at_1"]) == (True, 1.0)
    assert (parts["image"]["coverage_complete"], parts["image"]["pass_at_1"]) == (False, None)
    assert (report["pass_at_1"], report["coverage_complete"]) == (None, False)


def test_without_a_judge_a_free_answer_waits_and_the_score_is_a_lower_bound(runs):
    rows = hle(runs, 2)
    folder = runs.write(
        rows, [hle_answer(runs, rows[0], "42"), hle_answer(runs, rows[1], "forty-two")], task="hle", answer_kind="hle"
    )
    outcome = run_grade(folder)
    assert outcome.exit_code == 1
    assert outcome.report["counts"]["needs_judge"] == 1
    assert outcome.report["pass_at_1"] is None
    assert outcome.report["bounds"]["lower"] == 0.5
    assert outcome.report["label"].startswith("unofficial lower bound")
    assert outcome.report["grader_fingerprint"]["grader"] == "exact"
    assert outcome.report["maj_at_k"][0]["value"] is None


def test_a_judge_decides_and_grading_again_asks_nobody(runs):
    rows = hle(runs, 4)
    answers = ["right 1", "wrong", "right 2", "wrong"]
    folder = runs.write(
        rows,
        [hle_answer(runs, row, answer) for row, answer in zip(rows, answers, strict=True)],
        task="hle",
        answer_kind="hle",
    )
    judge = ScriptedJudge()
    options = {"judge": "http://127.0.0.1:1/v1", "judge_model": "m"}
    first = run_grade(folder, judge, **options)
    assert (first.exit_code, first.report["pass_at_1"], first.calls, judge.calls) == (0, 0.5, 4, 4)
    kept = (folder / "grade" / "report.json").read_bytes()
    second = run_grade(folder, judge, **options)
    assert (second.calls, judge.calls) == (0, 4)
    assert (folder / "grade" / "report.json").read_bytes() == kept
    replayed = run_grade(folder, out=folder / "again", judge_cache=folder / "grade" / "judge.jsonl")
    assert replayed.calls == 0
    assert (folder / "again" / "report.json").read_bytes() == kept
    assert not (folder / "again" / "judge.jsonl").exists()


def test_failures_and_mumbling_of_a_judge_are_no_verdicts(runs):
    """3 responses that the judge fails on, 2 that it mumbles about."""
    rows = hle(runs, 9)
    answers = ["fail 1", "fail 2", "fail 3", "mumble 1", "mumble 2", *(f"right {number}" for number in range(4))]
    folder = runs.write(
        rows,
        [hle_answer(runs, row, answer) for row, answer in zip(rows, answers, strict=True)],
        task="hle",
        answer_kind="hle",
    )

    def reply(prompt):
        if "Answer: fail" in prompt:
            return GenerationError("http_401", "no such judge", retriable=False)
        return "well..." if "Answer: mumble" in prompt else "correct: yes"

    judge = ScriptedJudge(reply)
    options = {"judge": "http://127.0.0.1:1/v1", "judge_model": "m"}
    outcome = run_grade(folder, judge, **options)
    assert (outcome.exit_code, outcome.report["pass_at_1"]) == (1, None)
    assert outcome.report["coverage"]["graded"] == 4
    counts = outcome.report["counts"]
    assert (counts["judge_failed"], counts["unparsed"], counts["correct"]) == (3, 2, 4)
    assert outcome.report["judge"]["failures"] == {"http_401": 3}
    assert outcome.report["calibration"]["n"] == 4
    assert outcome.failures == [("http_401", "no such judge")]
    judge.reply = lambda prompt: "correct: no"
    later = run_grade(folder, judge, **options)
    assert (later.calls, later.report["counts"]["incorrect"], later.report["counts"]["unparsed"]) == (3, 3, 2)


def test_a_judge_that_contradicts_itself_is_measured(runs):
    rows = hle(runs, 2)
    folder = runs.write(
        rows, [hle_answer(runs, rows[0], "right"), hle_answer(runs, rows[1], "unsure")], task="hle", answer_kind="hle"
    )
    turns = itertools.cycle(["yes", "no"])

    def reply(prompt):
        return "correct: yes" if "right" in prompt else f"correct: {next(turns)}"

    report = run_grade(
        folder,
        ScriptedJudge(reply),
        judge="http://127.0.0.1:1/v1",
        judge_model="m",
        judge_repeats=3,
        judge_concurrency=1,
    ).report
    assert report["judge"] == {"compared": 2, "flipped": 1, "flip_rate": 0.5, "failures": {}}


def test_an_unfinished_reply_is_not_put_to_a_judge(runs):
    rows = hle(runs, 1)
    cut = runs.answer(rows[0], 0, "<think>it goes on and", task="hle", finish_reason="length")
    folder = runs.write(rows, [cut], task="hle", answer_kind="hle")
    judge = ScriptedJudge()
    outcome = run_grade(folder, judge, judge="http://127.0.0.1:1/v1", judge_model="m")
    assert (judge.calls, outcome.exit_code, outcome.report["pass_at_1"]) == (0, 0, 0.0)
    assert outcome.report["counts"]["truncated"] == 1


def test_a_smaller_budget_stands_beside_the_grade(runs, tiny_folder):
    from detharness.checkpoints.tokenizer import CrossCheck, load_tokenizer_folder

    folder = str(tiny_folder("llama"))
    tokenizer = load_tokenizer_folder(tiny_folder("llama"), check=CrossCheck.SKIP)
    row = runs.row()
    ids = tokenizer.encode_rendered(RIGHT)
    assert tokenizer.decode(ids) == RIGHT
    answers = [
        runs.answer(row, 0, RIGHT, token_ids=ids),
        runs.answer(row, 1, RIGHT, token_ids=ids[:-1] + ids[-1:], seed=1),
    ]
    made = runs.write([row], answers, samples=2, answer_kind="integer")
    budget = len(ids) - 4
    unknown = run_grade(made, max_tokens_budget=budget)
    assert unknown.folder == made / f"grade-at-{budget}-tokens"
    assert (unknown.report["pass_at_1"], unknown.report["counts"]["over_budget"]) == (None, 2)
    cut = run_grade(made, max_tokens_budget=budget, tokenizer=folder)
    assert (cut.exit_code, cut.report["pass_at_1"], cut.report["counts"]["truncated"]) == (0, 0.0, 2)
    assert cut.report["grader_fingerprint"]["tokenizer_digest"] == tokenizer.digest
    assert cut.report["max_tokens_budget"] == budget
    whole = run_grade(made, max_tokens_budget=len(ids))
    assert (whole.report["pass_at_1"], whole.report["counts"]["truncated"]) == (1.0, 0)
    assert not (made / "grade").exists()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"mode": "loose"}, "--mode 'loose' is not one of: strict, lenient"),
        ({"at": "1,x"}, "--at '1,x' must be whole numbers"),
        ({"at": "0"}, "each number must be at least 1"),
        ({"max_tokens_budget": 0}, "--max-tokens-budget 0 must be at least 1"),
        ({"tokenizer": "smollm2-135m"}, "--tokenizer is only read with --max-tokens-budget"),
        ({"judge_model": "m"}, "--judge-model says how to judge, but no judge is named"),
        ({"judge": "http://x/v1", "judge_model": "m"}, "a judge is for free-form answers"),
    ],
)
def test_options_that_do_not_fit_are_named(runs, options, sentence):
    row = runs.row()
    folder = runs.write([row], [runs.answer(row)], answer_kind="integer")
    with pytest.raises(UsageError, match=sentence):
        run_grade(folder, **options)
    assert not (folder / "grade").exists()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"judge": "http://x/v1"}, "--judge needs --judge-model"),
        ({"judge": "u", "judge_model": "m", "judge_cache": "c"}, "--judge asks and --judge-cache replays"),
        ({"judge_cache": "absent.jsonl"}, "cannot read the judge cache absent.jsonl"),
        ({"judge_cache": "c", "judge_template": "t"}, "cannot read the judge template t"),
        ({"judge": "u", "judge_model": "m", "judge_repeats": 0}, "must be at least 1"),
    ],
)
def test_options_of_a_judge_that_do_not_fit_are_named(runs, options, sentence):
    rows = hle(runs, 1)
    folder = runs.write(rows, [hle_answer(runs, rows[0], "42")], task="hle", answer_kind="hle")
    typed = {
        name: Path(value) if name in ("judge_cache", "judge_template") else value for name, value in options.items()
    }
    with pytest.raises(UsageError, match=sentence):
        run_grade(folder, **typed)


def test_a_folder_that_holds_something_else_is_left_alone(runs, tmp_path):
    row = runs.row()
    folder = runs.write([row], [runs.answer(row)], answer_kind="integer")
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.tex").write_text("mine")
    with pytest.raises(UsageError, match=r"holds 'thesis\.tex', which is of no grade"):
        run_grade(folder, out=other)
    with pytest.raises(UsageError, match="cannot be a folder"):
        run_grade(folder, out=other / "thesis.tex")
    assert [path.name for path in other.iterdir()] == ["thesis.tex"]


def test_a_run_without_generations_is_refused(runs):
    folder = runs.write([runs.row()], [], answer_kind="integer")
    (folder / "generations.jsonl").unlink()
    with pytest.raises(UsageError, match=r"holds no generations\.jsonl"):
        run_grade(folder)
