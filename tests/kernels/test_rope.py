"""Rotary embedding."""

from __future__ import annotations

import pytest
import torch

from detharness.kernels.reference.rope import rope as exact_rope

DTYPES = (torch.float32, torch.bfloat16)


def tables(rows, width):
    angles = torch.arange(rows, dtype=torch.float64)[:, None] * 10000.0 ** (-torch.arange(width // 2) / (width / 2))
    return angles.cos().float(), angles.sin().float()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "kv_heads", "width"), [(1, 1, 2), (3, 1, 16), (4, 2, 40), (8, 8, 64)])
def test_a_row_depends_on_itself_and_its_position_alone(ours, impurities, heads, kv_heads, width, dtype):
    size = (heads + kv_heads) * width
    x = torch.randn(70, size, generator=torch.Generator().manual_seed(width))
    # The angles travel with the rows: row and position are what a row may depend on.
    travelling = torch.cat([x, *tables(70, width)], dim=1).to(dtype)

    def operator(rows):
        q, k, cos, sin = rows.split([heads * width, kv_heads * width, width // 2, width // 2], dim=1)
        turned = ours.rope(q.reshape(-1, heads, width), k.reshape(-1, kv_heads, width), cos.float(), sin.float())
        return torch.cat([part.flatten(1) for part in turned], dim=1)

    assert impurities(operator, travelling) == set()


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_error_is_at_most_twice_the_librarys(ours, library, at_most_twice, dtype):
    generator = torch.Generator().manual_seed(4)
    q, k = (torch.randn(9, heads, 64, generator=generator).to(dtype) for heads in (4, 2))
    cos, sin = tables(9, 64)
    mine, theirs = (kernels.rope(q, k, cos, sin) for kernels in (ours, library))
    for part, (x, actual, other) in enumerate(zip((q, k), mine, theirs, strict=True)):
        assert actual.shape == (q, k)[part].shape
        at_most_twice(actual, other, exact_rope(x, cos, sin))


def test_position_zero_turns_nothing(ours, same_bits):
    q = torch.randn(1, 2, 16, generator=torch.Generator().manual_seed(5))
    cos, sin = tables(1, 16)
    assert same_bits(ours.rope(q, q, cos, sin)[0], q)
