"""``detharness eval verify`` as it ends: exit codes, the last line, and what a person is told."""

import dataclasses
import json

import pytest
from typer.testing import CliRunner

from detharness.cli.evaluation import evaluation
from detharness.eval.records import root_of
from detharness.records.digests import sha256_value
from detharness.targets.generation import GenerationError, Reply

DESCRIBED = {"form": "scripted"}


class Target:
    """Says what the recorded answers say, unless ``reply`` says otherwise."""

    accepts_images = False

    def __init__(self, reply):
        self.reply = reply

    def describe(self):
        return DESCRIBED

    async def generate(self, request):
        if isinstance(self.reply, Exception):
            raise self.reply
        return Reply(text=self.reply, finish_reason="stop")

    async def close(self):
        pass


@pytest.fixture
def verify(monkeypatch):
    def call(*arguments, reply="it is 33"):
        opened = []

        def resolve(text, **named):
            opened.append((text, named))
            return Target(reply)

        monkeypatch.setattr("detharness.targets.resolve_generation.resolve_generation", resolve)
        done = CliRunner().invoke(evaluation, ["verify", *map(str, arguments)])
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        call.opened = opened
        return done

    return call


def answers_of(runs, row, count=3):
    made = [runs.answer(row, sample, "it is 33") for sample in range(count)]
    sampling = {"max_tokens": 9, "temperature": 0.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "stop": []}
    digest = sha256_value(DESCRIBED)
    return [
        dataclasses.replace(it, request={**it.request, "sampling": sampling, "target_digest": digest}) for it in made
    ]


@pytest.fixture
def folder(runs):
    row = runs.row()
    argument = {"target": "engine:m", "model": None, "kernels": "torch", "dtype": "bf16"}
    return runs.write(
        [row], answers_of(runs, row), samples=4, answer_kind="integer", target=DESCRIBED, target_argument=argument
    )


def last_line(done):
    return json.loads(done.stdout.splitlines()[-1])


def test_a_run_that_holds_ends_with_0_and_names_its_root(verify, folder, runs):
    done = verify(folder, "--json")
    report = last_line(done)
    digests = {("t0", sample): it.output.digest for sample, it in enumerate(answers_of(runs, runs.row()))}
    assert (done.exit_code, report["exit_code"], report["holds"]) == (0, 0, True)
    assert report["generation_root"] == root_of(digests)
    assert report["regenerated"] is None
    assert verify(folder, "--root", root_of(digests)).exit_code == 0
    assert verify(folder, "--root", "0" * 64).exit_code == 1


def test_an_edited_reply_ends_with_1_and_is_named_by_cell_and_line(verify, folder):
    path = folder / "generations.jsonl"
    path.write_bytes(path.read_bytes().replace(b"it is 33", b"it is 34", 1))
    done = verify(folder, "--json")
    assert (done.exit_code, last_line(done)["exit_code"]) == (1, 1)
    (finding,) = last_line(done)["findings"]
    assert (finding["kind"], finding["task_id"], finding["sample_index"]) == ("damaged", "t0", 0)
    assert finding["where"] == "generations.jsonl, line 1"
    assert "1 finding: " in done.stderr


def test_a_grade_that_was_never_finished_pins_nothing(verify, folder):
    (folder / "grade").mkdir()
    (folder / "grade" / "verdicts.jsonl").write_text("torn")
    done = verify(folder, "--json")
    assert (done.exit_code, last_line(done)["graded_root"]) == (0, None)
    asked_by_name = verify(folder, "--grade", folder / "grade")
    assert asked_by_name.exit_code == 2
    assert "holds no grade" in asked_by_name.stderr


@pytest.mark.parametrize(
    ("reply", "code", "sentence"),
    [
        ("it is 33", 0, "Asked again: 2 identical, 0 moved, 0 not tested."),
        ("it is 12", 1, "Asked again: 0 identical, 2 moved, 0 not tested."),
        (GenerationError("timeout", "no reply", retriable=True), 3, "0 identical, 0 moved, 2 not tested."),
    ],
)
def test_asking_again_has_three_ends(verify, folder, reply, code, sentence):
    done = verify(folder, "--regenerate", 2, "--json", reply=reply)
    assert (done.exit_code, last_line(done)["exit_code"]) == (code, code)
    assert sentence in done.stderr
    assert len(last_line(done)["regenerated"]) == 2
    assert verify.opened == [("engine:m", {"model": None, "kernels": "torch", "dtype": "bf16"})]


def test_the_first_difference_is_printed_with_what_stands_around_it(verify, folder):
    done = verify(folder, "--regenerate", 1, "--json", reply="it is \x1b[31m12")
    (result,) = last_line(done)["regenerated"]
    assert result["first_difference"]["index"] == len("it is ")
    assert "it is 33" in done.stderr
    assert "it is \\x1b[31m12" in done.stderr
    assert "\x1b[31m12" not in done.stderr


def test_damage_outweighs_what_could_not_be_tested(verify, folder):
    path = folder / "generations.jsonl"
    path.write_bytes(path.read_bytes().replace(b"it is 33", b"it is 34", 1))
    done = verify(folder, "--regenerate", 1, reply=GenerationError("timeout", "no reply", retriable=True))
    assert done.exit_code == 1


def test_nothing_to_ask_again_is_not_tested(verify, runs):
    row = runs.row()
    argument = {"target": "engine:m", "model": None, "kernels": "torch", "dtype": "bf16"}
    folder = runs.write([row], [runs.failure(row)], name="empty", target_argument=argument)
    done = verify(folder, "--regenerate", 5)
    assert (done.exit_code, verify.opened) == (3, [])
    assert "no answer that could be asked for again" in done.stderr


def test_another_name_for_the_target(verify, folder):
    assert verify(folder, "--regenerate", 1, "--target", "engine:moved").exit_code == 0
    assert verify.opened[0][0] == "engine:moved"
    done = verify(folder, "--target", "engine:moved")
    assert done.exit_code == 2
    assert "only read with --regenerate" in done.stderr


def test_a_reply_is_shown_whole_and_escaped(verify, folder, runs):
    hostile = "</script>\u202e\x1b]0;x\x07\x00\n" + "word " * 5000
    row = runs.row()
    with (folder / "generations.jsonl").open("ab") as file:
        file.write(runs.line(runs.answer(row, 3, hostile)))
    done = verify(folder, "--show", "t0:3")
    assert done.exit_code == 0
    assert "</script>\\u202e\\x1b]0;x\\x07\\x00\n" + "word " * 5000 in done.stdout
    assert not set(done.stdout) & set("\u202e\x1b\x07\x00")


def test_a_folder_that_is_no_run_ends_with_2_in_one_sentence(verify, tmp_path):
    done = verify(tmp_path)
    assert done.exit_code == 2
    assert done.stderr.count("\n") == 1
    assert "is no run" in done.stderr
