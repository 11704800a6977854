"""Cells asked again: what is identical, where what moved parts, and that a failure is neither."""

import asyncio
import dataclasses

from detharness.eval.verify.regenerate import choose_cells, regenerate
from detharness.targets.generation import GenerationError

CELLS = [(f"t{task}", sample) for task in range(20) for sample in range(4)]


def test_the_draw_is_a_function_of_the_seed_and_the_set_of_cells():
    drawn = choose_cells(CELLS, 7, 0)
    assert drawn == choose_cells(CELLS[::-1], 7, 0) == sorted(drawn)
    assert len(set(drawn)) == 7
    assert drawn != choose_cells(CELLS, 7, 1)
    assert choose_cells(CELLS, 100, 3) == sorted(CELLS)
    # A larger draw holds the smaller one.
    assert set(drawn) < set(choose_cells(CELLS, 20, 0))


def again(records, replies, concurrency=8):
    """Regenerate with ``replies``: cell -> output or exception. Returns results and the most that ran at once."""
    running = most = 0
    said = []

    async def ask(record):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        reply = replies.get(record.cell, record.output)
        if isinstance(reply, Exception):
            raise reply
        return reply

    results = asyncio.run(regenerate(records, ask, concurrency=concurrency, done=said.append))
    assert sorted(said) == sorted(result.outcome for result in results)
    return results, most


def test_each_outcome(runs):
    row = runs.row()
    records = [
        runs.answer(row, sample, "it is 33", token_ids=(4, 5, 6), logprob_bits_digest="a" * 64) for sample in range(5)
    ]
    replies = {
        ("t0", 1): dataclasses.replace(records[1].output, text="it is 34", token_ids=(4, 5, 7)),
        ("t0", 2): dataclasses.replace(records[2].output, logprob_bits_digest="b" * 64),
        ("t0", 3): GenerationError("timeout", "no reply in 5 s", retriable=True),
        ("t0", 4): dataclasses.replace(records[4].output, token_ids=None, logprob_bits_digest=None),
    }
    results, most = again(records, replies, concurrency=2)
    assert most == 2
    assert [result.cell[1] for result in results] == [0, 1, 2, 3, 4]
    assert [(result.outcome, result.logprob_bits) for result in results] == [
        ("identical", "same"),
        ("moved", "same"),
        ("identical", "different"),
        ("failed", "unknown"),
        ("identical", "unknown"),
    ]
    assert results[1].as_row()["first_difference"] == {
        "part": "token_ids",
        "index": 2,
        "token_ids": [[4, 5, 6], [4, 5, 7]],
        "text": ["it is 33", "it is 34"],
    }
    assert results[3].error == "timeout: no reply in 5 s"
