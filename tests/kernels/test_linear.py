"""Linear layers: a row's bits depend on the row and the weights alone; the library default fails the same check."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest
import torch

from detharness.kernels.contract import Schedule
from detharness.kernels.reference.linear import linear as exact_linear

DTYPES = (torch.float32, torch.bfloat16)
# (K, N): K below, at and off the vector width, off the leaf grid, more than 8 leaves; N of one column, of the narrow
# widths that MKL does not keep pure on every CPU, and one past a panel.
SHAPES = ((1, 1), (3, 3), (7, 5), (300, 33), (513, 64), (1001, 1), (576, 6), (300, 9), (40, 4097), (4104, 24))


def operands(K, N, dtype, rows=70, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, K, generator=generator).to(dtype)
    weight = torch.randn(N, K, generator=generator).to(dtype)
    bias = torch.randn(N, generator=generator).to(dtype)
    return x, weight, bias


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("K", "N"), SHAPES)
def test_a_row_depends_on_itself_and_the_weights_alone(ours, impurities, K, N, dtype):
    x, weight, bias = operands(K, N, dtype)
    packed = ours.pack_linear([weight], [bias if N % 2 else None])
    assert impurities(lambda rows: ours.linear(rows, packed), x) == set()


def test_the_library_default_fails_the_same_check_in_fp32(library, impurities):
    x, weight, _ = operands(300, 33, torch.float32)
    packed = library.pack_linear([weight], [None])
    assert "rows" in impurities(lambda rows: library.linear(rows, packed), x)


@pytest.mark.parametrize(("K", "N"), [(7, 5), (513, 64), (40, 4097)])
def test_every_schedule_gives_the_same_bits(ours, same_bits, K, N):
    x, weight, bias = operands(K, N, torch.float32)
    packed = ours.pack_linear([weight], [bias])
    tiles = packed.schedule.row_tiles
    expected = ours.linear(x, packed)
    played = 0
    for count in range(1, len(tiles) + 1):
        for subset in combinations(tiles, count):
            scheduled = replace(packed, schedule=Schedule(subset))
            for rows in (1, 5, 17, 70):
                assert same_bits(ours.linear(x[:rows], scheduled), expected[:rows])
                played += 1
    assert played == 4 * (2 ** len(tiles) - 1)


@pytest.mark.parametrize("dtype", DTYPES)
def test_packed_parts_stand_side_by_side_and_a_missing_bias_is_zero(ours, library, at_most_twice, dtype):
    x, weight, bias = operands(129, 70, dtype)
    parts = torch.split(weight, [48, 11, 11])
    packed = ours.pack_linear(parts, [bias[:48], None, bias[59:]])
    filled = torch.cat([bias[:48], torch.zeros(11, dtype=dtype), bias[59:]])
    at_most_twice(
        ours.linear(x, packed), torch.nn.functional.linear(x, weight, filled), exact_linear(x, weight, filled)
    )
    for kernels in (ours, library):
        joined = kernels.pack_linear(parts, [bias[:48], None, bias[59:]])
        whole = kernels.pack_linear([weight], [filled])
        assert torch.equal(kernels.linear(x, joined), kernels.linear(x, whole))


def test_no_rows_give_no_rows(ours):
    x, weight, _ = operands(16, 4, torch.float32)
    packed = ours.pack_linear([weight], [None])
    assert ours.linear(x[:0], packed).shape == (0, 4)


def test_packing_copies_the_weights(ours, same_bits):
    x, weight, bias = operands(64, 8, torch.float32)
    packed = ours.pack_linear([weight], [bias])
    before = ours.linear(x, packed)
    weight.zero_()
    bias.zero_()
    assert same_bits(ours.linear(x, packed), before)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("K", "positive"), [(64, False), (4096, False), (4096, True), (14336, False), (14336, True)])
def test_the_error_is_at_most_twice_the_librarys(ours, at_most_twice, K, positive, dtype):
    x, weight, _ = operands(K, 96, dtype, rows=33)
    if positive:
        x, weight = x.abs(), weight.abs()
    packed = ours.pack_linear([weight], [None])
    at_most_twice(ours.linear(x, packed), torch.nn.functional.linear(x, weight), exact_linear(x, weight))


def test_leaves_are_merged_in_pairs(ours):
    # Eight leaves of one element: (1e8 + 1) + (-1e8 + 1) loses both ones in fp32; in ascending order one is left.
    packed = ours.pack_linear([torch.ones(1, 8)], [None])
    x = torch.tensor([[1e8, 1.0, -1e8, 1.0, 0.0, 0.0, 0.0, 0.0]])
    assert ours.linear(x, packed).item() == 0.0


def test_the_plan_names_leaves_and_length(ours):
    _, weight, _ = operands(4104, 24, torch.float32)
    ours.pack_linear([weight], [None])
    assert "linear:4104=16x257:certified-bmm:pairwise" in ours.plan_ids()
