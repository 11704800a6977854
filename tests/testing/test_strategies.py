"""The strategies reach borders, stay inside what they promise, and shrink to the smallest batch that fails."""

from __future__ import annotations

import pytest
import torch
from hypothesis import find, given, settings
from hypothesis import strategies as st

from detharness.errors import UsageError
from detharness.testing import Batch, BitsMovedError, Normal, assert_row_pure, every_batch, row_counts, strategies
from detharness.testing.batches import LAYOUTS, NEIGHBOURS
from detharness.testing.inputs import arrange

STEADY = settings(derandomize=True, database=None, max_examples=500)


def seen(strategy):
    """Everything that 500 examples show."""
    drawn = []

    @STEADY
    @given(strategy)
    def draw(value):
        drawn.append(value)

    draw()
    return drawn


def test_row_counts_stand_around_powers_of_two_and_thresholds():
    assert row_counts(most=17) == (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17)
    assert row_counts(most=4, thresholds=(48,)) == (1, 2, 3, 4, 47, 48, 49)
    assert row_counts(most=1) == (1,)
    assert row_counts(most=3, thresholds=(1,)) == (1, 2, 3)
    for wrong in ({"most": 0}, {"thresholds": (0,)}):
        with pytest.raises(UsageError, match="start at 1"):
            row_counts(**wrong)


def test_drawn_row_counts_meet_every_border_and_others():
    drawn = seen(strategies.row_counts(most=70, thresholds=(48,)))
    assert set(row_counts(most=70, thresholds=(48,))) <= set(drawn)
    assert set(drawn) - set(row_counts(most=70, thresholds=(48,)))
    assert set(drawn) <= set(range(1, 71))


def test_lengths_are_ragged():
    drawn = seen(strategies.lengths(most=33, sequences=4))
    assert all(2 <= len(lengths) <= 4 and len(set(lengths)) > 1 for lengths in drawn)
    assert {length for lengths in drawn for length in lengths} >= {1, 15, 16, 17, 31, 32, 33}


def test_every_axis_is_drawn():
    drawn = seen(strategies.batches())
    assert {batch.neighbours for batch in drawn} == {"own", *NEIGHBOURS} == set(seen(strategies.neighbours()))
    assert {batch.layout for batch in drawn} == {"packed", *LAYOUTS} <= set(seen(strategies.layouts()))
    assert {batch.threads for batch in drawn} == {1, 2}
    assert any(0 < batch.slot == batch.rows - 1 for batch in drawn)
    assert {torch.float32, torch.bfloat16, torch.float16} == set(seen(strategies.dtypes()))


def test_the_sweep_plays_every_value_of_every_axis():
    batches = list(every_batch(rows=[1, 6]))
    assert {batch.neighbours for batch in batches} == {"own", *NEIGHBOURS}
    assert {batch.layout for batch in batches} == {"packed", *LAYOUTS}
    assert {batch.threads for batch in batches} == {1, 2, 3}
    assert {(batch.rows, batch.slot) for batch in batches} == {(1, 0), (6, 0), (6, 3), (6, 5)}


def test_a_failing_batch_shrinks_to_the_smallest():
    smallest = find(strategies.batches(), lambda batch: batch.rows > 10 and batch.layout != "packed", settings=STEADY)
    assert smallest == Batch(rows=11, layout=LAYOUTS[0])


@settings(STEADY, max_examples=20)
@given(batch=strategies.batches(most=9), dtype=strategies.dtypes())
def test_a_drawn_batch_is_judged(batch, dtype):
    rows = {"x": Normal(3, dtype=dtype)}
    other = Batch(rows=10, layout="offset 1")
    assert assert_row_pure(lambda x: x * 2.0, rows=rows, batches=[batch, other]) >= 10
    with pytest.raises(BitsMovedError) as caught:
        assert_row_pure(lambda x: x * (2.0 if len(x) < 10 else 2.5), rows=rows, batches=[batch, other])
    assert caught.value.axes == ("rows",)


@settings(STEADY, max_examples=200)
@given(batch=strategies.batches(most=20), width=st.integers(1, 4), dtype=strategies.dtypes())
def test_arranged_rows_keep_their_values(batch, width, dtype):
    table = Normal(width, dtype=dtype).tensor(seed=0, rows=16)
    placed = arrange(table, batch)
    assert placed.shape == (batch.rows, width)
    assert torch.equal(placed[batch.slot], table[batch.row])
    if batch.neighbours == "own":
        ids = (torch.arange(batch.rows) + batch.row - batch.slot) % 16
        assert torch.equal(placed, table[ids])
    else:
        others = placed[torch.arange(batch.rows) != batch.slot].float()
        expected = {"max": torch.finfo(dtype).max, "subnormal": torch.finfo(dtype).smallest_normal / 2}
        value = expected.get(batch.neighbours) or float(batch.neighbours)
        assert torch.equal(others.nan_to_num(1.5), torch.full_like(others, value).nan_to_num(1.5))
    if batch.layout.startswith("offset"):
        assert placed.data_ptr() % 64 == int(batch.layout[7:]) * placed.element_size() % 64
    if batch.rows > 1 and width > 1:
        contiguous = batch.layout == "packed" or batch.layout.startswith("offset")
        assert placed.is_contiguous() == contiguous


@pytest.mark.parametrize(
    "wrong",
    [
        {"rows": 0},
        {"rows": 2, "slot": 2},
        {"slot": -1},
        {"row": -1},
        {"threads": 0},
        {"neighbours": "zero"},
        {"layout": "offset"},
        {"layout": "diagonal"},
        {"layout": "offset -1"},
    ],
)
def test_a_batch_that_cannot_be_is_refused(wrong):
    with pytest.raises(UsageError):
        Batch(**wrong)
