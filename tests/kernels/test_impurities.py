"""The row-purity check of these tests, held against one planted fault per axis: it names exactly that axis."""

from __future__ import annotations

import pytest
import torch

ROWS = torch.randn(70, 6, generator=torch.Generator().manual_seed(1))
FAULTS = {
    # The count enters, but not when all 70 rows are there.
    "rows": lambda x: x if len(x) >= 35 else x + 1e-3,
    # The last row of a full batch differs from the others.
    "slot": lambda x: x + (torch.arange(len(x)) == 69)[:, None] * 1e-3,
    "neighbours": lambda x: x if bool((x.abs() < 1e30).all()) else x * 1.0001,
    "layout": lambda x: x + 1e-3 * (x.data_ptr() % 64 == 4),
    "threads": lambda x: x * torch.get_num_threads(),
}


@pytest.mark.parametrize("axis", FAULTS)
def test_a_planted_fault_is_found_on_its_axis(impurities, axis):
    assert impurities(FAULTS[axis], ROWS) == {axis}


def test_a_pure_operator_is_found_pure(impurities):
    assert impurities(lambda x: x * 3.0 + 1.0, ROWS) == set()


def test_the_sign_of_zero_is_a_bit(impurities):
    assert impurities(lambda x: x * (0.0 if len(x) == 70 else -0.0), ROWS.abs()) != set()


def test_same_bits_tells_zeros_apart_and_nan_equal(same_bits):
    assert not same_bits(torch.tensor([0.0]), torch.tensor([-0.0]))
    assert same_bits(torch.tensor([torch.nan]), torch.tensor([torch.nan]))
    assert not same_bits(torch.tensor([1.0]), torch.tensor([1.0], dtype=torch.bfloat16))
