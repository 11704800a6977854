"""Norms, rope, gating, log-softmax, KV write: row-pure, equal on every register width, and the PyTorch backend's bits.

Parity with ``kernels/pytorch`` is bitwise here: both backends walk the same trees with the same elementary functions.
"""

import pytest
import torch

from detharness.errors import KernelError

DTYPES = [torch.float32, torch.bfloat16]
LENGTHS = [1, 7, 8, 16, 64, 96, 577, 4097]
EPS = 1e-5


def rows_of(length, dtype=torch.float32, rows=70, scale=1.0):
    generator = torch.Generator().manual_seed(length)
    return (torch.randn(rows, length, generator=generator) * scale).to(dtype)


def norms(kernels, x, weight):
    return [kernels.rms_norm(x, weight, EPS), *kernels.add_rms_norm(x, x.flip(0).contiguous(), weight, EPS)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", LENGTHS)
def test_norms(kernels, kernels_by_width, ours, impurities, same_bits, length, dtype):
    x, weight = rows_of(length, dtype), rows_of(length, dtype, rows=1)[0]
    x[5] *= 1e-20  # The mean of squares is far below eps.
    x[6] *= 1e15
    assert impurities(lambda rows: kernels.rms_norm(rows, weight, EPS), x) == set()
    expected = norms(ours, x, weight)
    for other in kernels_by_width.values():
        assert all(same_bits(a, b) for a, b in zip(norms(other, x, weight), expected, strict=True))


def test_heads_cut_out_of_the_packed_output_are_normed_one_by_one(kernels, same_bits):
    wide = rows_of(960)
    heads = wide[:, :576].view(70, 9, 64)
    weight = rows_of(64, rows=1)[0]
    dense = kernels.rms_norm(heads.reshape(-1, 64).contiguous(), weight, EPS)
    assert same_bits(kernels.rms_norm(heads, weight, EPS), dense.view(70, 9, 64))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", LENGTHS)
def test_gating(kernels, kernels_by_width, ours, impurities, same_bits, length, dtype):
    gate_up = rows_of(2 * length, dtype, scale=20.0)
    edges = torch.tensor([0.0, -0.0, 87.33654, -88.73, 104.0, -200.0, 1e-40, float("inf"), float("nan")])
    gate_up[3, : min(length, 9)] = edges[:length].to(dtype)
    assert impurities(kernels.silu_and_mul, gate_up.nan_to_num(0.0, 0.0, 0.0)) == set()
    for other in kernels_by_width.values():
        assert same_bits(other.silu_and_mul(gate_up).nan_to_num(7.0), ours.silu_and_mul(gate_up).nan_to_num(7.0))


def test_exp_over_its_whole_range(kernels, ours, same_bits):
    # silu(-x) shows exp(x); every 977th fp32 from -104 to 89 and beyond, both signs.
    bits = torch.arange(0, 0x7F800000, 977, dtype=torch.int64).to(torch.int32)
    gate = torch.cat([bits.view(torch.float32), -bits.view(torch.float32)])
    gate_up = torch.cat([gate, torch.ones_like(gate)])[None]
    assert same_bits(kernels.silu_and_mul(gate_up), ours.silu_and_mul(gate_up))


@pytest.mark.parametrize("length", [1, 5, 96, 577, 49152, 152064])
def test_log_softmax(kernels, kernels_by_width, ours, impurities, same_bits, length):
    wide = length > 10000
    logits = rows_of(length, rows=4 if wide else 70, scale=8.0)
    if not wide:
        # Beside its input: over one id every row's output is 0, and rows could not be told apart.
        assert impurities(lambda x: torch.cat([kernels.log_softmax(x), x], dim=1), logits) == set()
    logits[1, length // 2 :] = -float("inf")  # What a mask leaves; for one column the row has no distribution.
    expected = ours.log_softmax(logits)
    for other in kernels_by_width.values():
        assert same_bits(other.log_softmax(logits).nan_to_num(7.0), expected.nan_to_num(7.0))


def test_log_softmax_of_a_row_that_holds_nan_is_nan_and_no_other_row_moves(kernels, same_bits):
    logits = rows_of(50, rows=3)
    before = kernels.log_softmax(logits)
    for column in (0, 17, 49):
        damaged = logits.clone()
        damaged[1, column] = float("nan")
        after = kernels.log_softmax(damaged)
        assert torch.isnan(after[1]).all()
        assert same_bits(after[::2], before[::2])


def test_log_softmax_error_at_most_twice_that_of_torch(kernels, library, at_most_twice):
    for length in (49152, 152064):
        logits = rows_of(length, rows=2, scale=4.0)
        exact = torch.log_softmax(logits.double(), dim=-1)
        at_most_twice(kernels.log_softmax(logits), library.log_softmax(logits), exact)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [2, 40, 64])
def test_rope(kernels, kernels_by_width, ours, same_bits, width, dtype):
    packed = rows_of(3 * 5 * width, dtype)
    q, k = packed[:, : 3 * width].view(70, 3, width), packed[:, 3 * width :].view(70, 12, width)
    angles = rows_of(width // 2)
    cos, sin = angles.cos(), angles.sin()
    expected = ours.rope(q, k, cos, sin)
    for other in kernels_by_width.values():
        for count in (1, 2, 70):
            rotated = other.rope(q[:count], k[:count], cos[:count], sin[:count])
            assert all(same_bits(a, b[:count]) for a, b in zip(rotated, expected, strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
def test_write_kv_writes_its_slots_and_nothing_else(kernels, same_bits, dtype):
    packed = rows_of(2 * 3 * 10, dtype, rows=6)
    k, v = packed[:, :30].view(6, 3, 10), packed[:, 30:].view(6, 3, 10)
    slots = torch.tensor([11, 0, 5, 19, 7, 8])
    pages = [torch.full((4, 5, 3, 10), -7.0, dtype=dtype) for _ in range(2)]
    kernels.write_kv(k, v, *pages, slots)
    for written, x in zip(pages, (k, v), strict=True):
        expected = torch.full((20, 3, 10), -7.0, dtype=dtype)
        expected[slots] = x
        assert same_bits(written.view(20, 3, 10), expected)


def test_refusals(kernels):
    x = rows_of(8, rows=2)
    with pytest.raises(KernelError, match="float64"):
        kernels.rms_norm(x.double(), torch.ones(8), EPS)
    with pytest.raises(KernelError, match="one shape and dtype"):
        kernels.add_rms_norm(x, x.bfloat16(), torch.ones(8), EPS)
    with pytest.raises(KernelError, match="fp32 cos and sin"):
        kernels.rope(x.view(2, 1, 8), x.view(2, 1, 8), torch.ones(2, 3), torch.ones(2, 3))
    with pytest.raises(KernelError, match="fp32"):
        kernels.log_softmax(x.bfloat16())
    with pytest.raises(KernelError, match="share dtype"):
        kernels.write_kv(x.view(2, 1, 8), x.view(2, 1, 8), *[torch.zeros(1, 4, 1, 9)] * 2, torch.tensor([0, 1]))
