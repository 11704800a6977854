"""RMSNorm, alone and after a residual addition."""

from __future__ import annotations

import pytest
import torch

from detharness.kernels.reference.norm import add_rms_norm as exact_add
from detharness.kernels.reference.norm import rms_norm as exact_norm

DTYPES = (torch.float32, torch.bfloat16)
EPS = 1e-5


def operands(K, dtype, rows=70):
    generator = torch.Generator().manual_seed(K)
    x = torch.randn(rows, K, generator=generator)
    x[rows // 2] *= 1e-20  # The mean of squares is far below eps.
    x[rows // 3] *= 1e15
    return x.to(dtype), torch.randn(K, generator=generator).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("K", [1, 3, 96, 577, 4097])
def test_a_row_depends_on_itself_and_the_weight_alone(ours, impurities, K, dtype):
    x, weight = operands(K, dtype)
    assert impurities(lambda rows: ours.rms_norm(rows, weight, EPS), x) == set()


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_residual_form_too(ours, impurities, dtype):
    x, weight = operands(193, dtype)
    # Both inputs travel as one row, so that the check moves them together.
    both = torch.cat([x, x.flip(0)], dim=1)

    def operator(rows):
        first, second = rows.chunk(2, dim=1)
        return torch.cat(ours.add_rms_norm(first, second, weight, EPS), dim=1)

    assert impurities(operator, both) == set()


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_residual_form_is_the_norm_of_the_rounded_sum(ours, same_bits, dtype):
    x, weight = operands(96, dtype)
    normed, total = ours.add_rms_norm(x, x.flip(0), weight, EPS)
    assert same_bits(total, x + x.flip(0))
    assert same_bits(normed, ours.rms_norm(total, weight, EPS))


@pytest.mark.parametrize("heads", [1, 4])
def test_heads_are_normed_one_by_one(ours, same_bits, heads):
    x, weight = operands(64, torch.float32)
    stacked = x[: 68 // heads * heads].view(-1, heads, 64)
    flat = ours.rms_norm(stacked.reshape(-1, 64), weight, EPS)
    assert same_bits(ours.rms_norm(stacked, weight, EPS), flat.view_as(stacked))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("K", [64, 4096, 14336])
def test_the_error_is_at_most_twice_the_librarys(ours, library, at_most_twice, K, dtype):
    generator = torch.Generator().manual_seed(2)
    x, y = (torch.randn(33, K, generator=generator).to(dtype) for _ in range(2))
    weight = torch.randn(K, generator=generator).to(dtype)
    at_most_twice(ours.rms_norm(x, weight, EPS), library.rms_norm(x, weight, EPS), exact_norm(x, weight, EPS))
    mine, theirs, exact = (form(x, y, weight, EPS) for form in (ours.add_rms_norm, library.add_rms_norm, exact_add))
    at_most_twice(mine[0], theirs[0], exact[0])
    assert torch.equal(mine[1].double(), exact[1])
