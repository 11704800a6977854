"""exp, log, sqrt, sin and cos against exact values, the same bits wherever an element stands, and tree sums."""

from __future__ import annotations

import math
import random

import mpmath
import numpy as np
import pytest
import torch

from detharness.kernels.contract import ReductionPlan, tree_plan
from detharness.kernels.elementary import TRIG_LIMIT, cos64, exp32, exp64, log64, pairwise_sum, sin64, sqrt32, tree_sum

FUNCTIONS = {
    "exp32": (exp32, torch.float32),
    "exp64": (exp64, torch.float64),
    "log64": (lambda x: log64(x.abs()), torch.float64),
    "sqrt32": (lambda x: sqrt32(x.abs()), torch.float32),
    "sin64": (sin64, torch.float64),
    "cos64": (cos64, torch.float64),
}


def worst_ulps(function, exact, values, dtype):
    """Largest error in units in the last place of the exact result rounded to ``dtype``."""
    x = torch.tensor(values, dtype=dtype)
    worst = 0.0
    with mpmath.workprec(160):
        for value, result in zip(x.tolist(), function(x).tolist(), strict=True):
            wanted = exact(mpmath.mpf(value))
            ulp = np.spacing(np.float32(wanted)) if dtype == torch.float32 else math.ulp(float(wanted))
            worst = max(worst, abs(float((result - wanted) / mpmath.mpf(float(ulp)))))
    return worst


def test_exp32_is_within_one_ulp():
    draw = random.Random(1)
    values = [draw.uniform(-87.33, 88.72) for _ in range(4000)] + [draw.uniform(-1, 1) for _ in range(1000)]
    # These missed the bound under earlier coefficients: the sweep that found them is too long for every run.
    values += [70.35874938964844, -16.98078727722168, -81.39115905761719]
    assert worst_ulps(exp32, mpmath.exp, values, torch.float32) <= 1.0


def test_exp32_at_a_million_points_stays_within_one_ulp_of_fp64():
    x = torch.rand(1 << 20, generator=torch.Generator().manual_seed(2)) * 176 - 87.3
    exact = torch.exp(x.double())
    kept = exact < 3.4e38
    rounded = exact[kept].float()
    ulp = (torch.nextafter(rounded, torch.tensor(torch.inf)) - rounded).double()
    assert ((exp32(x[kept]).double() - exact[kept]).abs() <= ulp).all()


def test_exp64_is_within_two_ulps():
    draw = random.Random(3)
    values = [draw.uniform(-708.39, 709.78) for _ in range(3000)] + [draw.uniform(-1, 1) for _ in range(1000)]
    assert worst_ulps(exp64, mpmath.exp, values, torch.float64) <= 2.0


def test_log64_is_within_two_ulps():
    draw = random.Random(4)
    values = [draw.uniform(0.5, 2) for _ in range(3000)] + [2.0 ** draw.uniform(-1022, 1023) for _ in range(1000)]
    values += [1 + draw.choice((-1, 1)) * 2.0 ** -draw.uniform(1, 52) for _ in range(1000)]
    values += [math.sqrt(2), math.nextafter(math.sqrt(2), 2), 2.0**-1022, 1.7e308, 1 - 2**-53]
    assert worst_ulps(log64, mpmath.log, [value for value in values if value != 1], torch.float64) <= 2.0


@pytest.mark.parametrize(("function", "exact"), [(sin64, mpmath.sin), (cos64, mpmath.cos)])
def test_sin64_and_cos64_err_by_less_than_1e_15(function, exact):
    draw = random.Random(5)
    values = [draw.uniform(-TRIG_LIMIT, TRIG_LIMIT) for _ in range(2000)] + [draw.uniform(-4, 4) for _ in range(2000)]
    values += [k * math.pi / 2 for k in (*range(-9, 10), 1_000_003, -1_273_239)] + [float(n) for n in range(200)]
    values += [TRIG_LIMIT, -TRIG_LIMIT]
    with mpmath.workprec(160):
        for value, result in zip(values, function(torch.tensor(values, dtype=torch.float64)).tolist(), strict=True):
            assert abs(result - exact(mpmath.mpf(value))) < 1e-15


@pytest.mark.parametrize("exponent", [0, 1, -126, -149, 126, 127])
def test_sqrt32_is_correctly_rounded(exponent):
    # numpy's is the CPU's own instruction. Even and odd exponents; subnormals; the largest numbers.
    mantissas = np.random.default_rng(8).integers(0, 1 << 23, 200_000, dtype=np.uint32)
    mantissas[:3] = 0, 1, (1 << 23) - 1
    x = np.ldexp(1 + mantissas / np.float64(1 << 23), exponent).astype(np.float32)
    x = x[np.isfinite(x)]
    assert np.array_equal(sqrt32(torch.from_numpy(x)).numpy(), np.sqrt(x))


def test_sqrt_edges():
    assert sqrt32(torch.tensor([0.0, 1.0, 4.0, math.inf])).tolist() == [0.0, 1.0, 2.0, math.inf]
    assert torch.isnan(sqrt32(torch.tensor([-1.0, torch.nan]))).all()


def test_exp_edges():
    edge32 = torch.tensor([0.0, -0.0, -torch.inf, -3e38, -88.0, torch.inf, 88.73, 3e38, torch.nan])
    for function, x in ((exp32, edge32), (exp64, edge32.double() * 10)):
        assert function(x)[:8].tolist() == [1.0, 1.0, 0.0, 0.0, 0.0, math.inf, math.inf, math.inf]
        assert torch.isnan(function(x)[8])
    assert exp32(torch.tensor([88.72283])).item() == pytest.approx(3.4028e38, rel=1e-4)  # The largest fp32 nearly.
    assert exp32(torch.tensor([-87.3365])).item() >= 2.0**-126
    assert exp32(torch.tensor([-87.34])).item() == 0.0  # Would be subnormal: flushed.


def test_log_edges():
    result = log64(torch.tensor([0.0, 1.0, math.inf, -1.0, math.nan], dtype=torch.float64)).tolist()
    assert result[:3] == [-math.inf, 0.0, math.inf]
    assert all(map(math.isnan, result[3:]))


@pytest.mark.parametrize("function", [sin64, cos64])
def test_angles_beyond_the_limit_are_refused(function):
    with pytest.raises(ValueError, match="2e\\+06"):
        function(torch.tensor([0.0, TRIG_LIMIT * 1.001], dtype=torch.float64))


def moved_elements(function, x, same_bits):
    """How often an element of ``x`` [70] changes bits with the length of the tensor, its place, or its alignment."""
    expected = function(x)
    moved = 0
    for length in range(1, 71):
        for start in range(0, 71 - length, 3):
            piece = x[start : start + length]  # As a view: every alignment.
            moved += not same_bits(function(piece), expected[start : start + length])
            moved += not same_bits(function(piece.clone()), expected[start : start + length])
    return moved


@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_element_does_not_depend_on_where_it_stands(same_bits, name):
    function, dtype = FUNCTIONS[name]
    x = torch.randn(70, dtype=dtype, generator=torch.Generator().manual_seed(6)) * 3
    assert moved_elements(function, x, same_bits) == 0


def test_exp32_of_many_elements_is_worked_through_in_pieces(same_bits):
    x = torch.randn(3, 70_001, generator=torch.Generator().manual_seed(9)) * 30
    expected = torch.cat([exp32(part) for part in torch.split(x.flatten(), 1001)]).view(3, -1)
    assert same_bits(exp32(x), expected)
    assert same_bits(exp32(x.T), expected.T)


def test_torchs_sigmoid_fails_the_same_check_where_its_tail_differs(same_bits):
    candidates = torch.randn(2048, generator=torch.Generator().manual_seed(6)) * 3
    alone = torch.cat([torch.sigmoid(candidates[i : i + 1]) for i in range(2048)])
    differing = candidates[torch.sigmoid(candidates) != alone]
    if len(differing) == 0:
        pytest.skip("torch.sigmoid has one code for vector body and tail on this host")
    assert moved_elements(torch.sigmoid, differing.repeat(70)[:70], same_bits) > 0


def replay(values, plan: ReductionPlan):
    """Sum as the plan says, one addition at a time, in the dtype of ``values``."""
    zero = values.dtype.type(0)

    def fold(items):
        while len(items) > 1:
            half = len(items) // 2
            items = [items[i] + items[i + half] for i in range(half)]
        return items[0]

    partials = []
    for leaf in range(plan.leaves):
        items = list(values[leaf * plan.leaf_length : min((leaf + 1) * plan.leaf_length, plan.length)])
        width = 1 << (plan.leaf_length - 1).bit_length()
        partials.append(fold(items + [zero] * (width - len(items))))
    while len(partials) > 1:
        partials = [partials[i] + partials[i + 1] for i in range(0, len(partials), 2)]
    return partials[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("length", [1, 2, 3, 7, 8, 9, 64, 65, 576, 1000, 4097, 14336])
def test_a_tree_sum_is_its_plan_bit_for_bit(length, dtype):
    plan = tree_plan("sum", length, "halving")
    x = torch.randn(2, length, dtype=dtype, generator=torch.Generator().manual_seed(length))
    assert tree_sum(x, plan).tolist() == [replay(row, plan).item() for row in x.numpy()]


@pytest.mark.parametrize("length", [1, 2, 5, 8, 9, 4096, 4097, 14336, 152064])
def test_a_tree_plan_covers_its_length_with_short_leaves(length):
    plan = tree_plan("x", length, "halving")
    assert plan.leaves & (plan.leaves - 1) == 0
    assert plan.leaves * plan.leaf_length >= length
    assert plan.leaf_length <= 512
    assert plan.leaves >= min(8, 1 << (length.bit_length() - 1))


def test_a_plan_over_nothing_is_refused():
    with pytest.raises(ValueError, match="at least one element"):
        tree_plan("x", 0, "halving")


def test_pairwise_sum_merges_neighbours_first():
    big = torch.tensor([[1e8], [1.0], [-1e8], [1.0]])
    # (1e8 + 1) + (-1e8 + 1): each 1 is lost or rounded; in ascending order the result would be 1.
    a, b = np.float32(1e8) + np.float32(1), np.float32(-1e8) + np.float32(1)
    assert pairwise_sum(big).item() == a + b != 1.0


def test_a_tree_sum_keeps_nan_and_infinity_in_their_row():
    plan = tree_plan("sum", 100, "halving")
    x = torch.ones(3, 100)
    x[0, 5], x[2, 99] = torch.nan, torch.inf
    result = tree_sum(x, plan).tolist()
    assert math.isnan(result[0])
    assert result[1:] == [100.0, math.inf]
