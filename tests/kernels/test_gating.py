"""silu(gate) * up: elementwise and still a hazard, as a library may treat the last elements of a row otherwise."""

from __future__ import annotations

import pytest
import torch

from detharness.kernels.reference.gating import silu_and_mul as exact_gate

DTYPES = (torch.float32, torch.bfloat16)


def operands(width, dtype, rows=70):
    x = torch.randn(rows, 2 * width, generator=torch.Generator().manual_seed(width)) * 4
    x[0, 0], x[1, 0], x[2, 0], x[3, 0] = 0.0, -200.0, 200.0, -88.5
    x[4] *= 1e-38  # Subnormal products.
    return x.to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 3, 17, 160, 1001])
def test_a_row_depends_on_itself_alone(ours, impurities, width, dtype):
    assert impurities(ours.silu_and_mul, operands(width, dtype)) == set()


def test_a_column_does_not_depend_on_where_it_stands(ours, same_bits):
    gate, up = operands(67, torch.float32).chunk(2, dim=1)
    expected = ours.silu_and_mul(torch.cat([gate, up], dim=1))
    for width in range(1, 68):
        for first in (0, 67 - width):
            cut = slice(first, first + width)
            assert same_bits(ours.silu_and_mul(torch.cat([gate[:, cut], up[:, cut]], dim=1)), expected[:, cut])


def test_far_gates_close_and_open(ours):
    gate_up = torch.tensor([[-200.0, 2.0], [200.0, 2.0], [0.0, 2.0], [-3e38, 2.0]])
    assert ours.silu_and_mul(gate_up)[:, 0].tolist() == [-0.0, 400.0, 0.0, -0.0]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [1.0, 20.0])
def test_the_error_is_at_most_twice_the_librarys(ours, library, at_most_twice, scale, dtype):
    x = (torch.randn(33, 2 * 3072, generator=torch.Generator().manual_seed(3)) * scale).to(dtype)
    at_most_twice(ours.silu_and_mul(x), library.silu_and_mul(x), exact_gate(x))
