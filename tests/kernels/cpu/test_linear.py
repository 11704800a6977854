"""linear: row-pure bitwise over every row count, slot, neighbour, thread count and register width; and accurate.

For one weight: row alone == row in any batch == the same row at any other width, thread count or offset.
"""

import pytest
import torch
from torch.nn.functional import linear

from detharness.errors import KernelError

DTYPES = [torch.float32, torch.bfloat16]
# Even and odd leaves, a K below eight leaves, a last leaf that is short, and one that is empty (K = 9: 8 leaves of 2).
SHAPES = [(576, 96), (577, 50), (96, 33), (3, 5), (9, 32), (1, 1), (4608, 40)]


def inputs(rows, columns, length, dtype, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, length, generator=generator).to(dtype)
    weight = torch.randn(columns, length, generator=generator)
    bias = torch.randn(columns, generator=generator)
    return x, weight, bias


@pytest.mark.parametrize("weight_dtype", DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("length", "columns"), SHAPES)
def test_a_row_has_one_value_whatever_the_row_count(kernels, length, columns, dtype, weight_dtype):
    x, weight, bias = inputs(70, columns, length, dtype)
    packed = kernels.pack_linear([weight.to(weight_dtype)], [bias])
    alone = torch.cat([kernels.linear(x[row : row + 1], packed) for row in range(70)])
    for rows in range(1, 71):
        assert torch.equal(kernels.linear(x[:rows], packed), alone[:rows]), rows


def test_no_rows_give_no_rows(kernels):
    x, weight, bias = inputs(3, 40, 96, torch.float32)
    for packed in (kernels.pack_linear([weight], [bias]), kernels.pack_linear([weight.bfloat16()], [None])):
        assert kernels.linear(x[:0], packed).shape == (0, 40)
    assert kernels.rms_norm(x[:0], weight[0], 1e-5).shape == (0, 96)
    assert kernels.silu_and_mul(x[:0]).shape == (0, 48)
    assert kernels.log_softmax(x[:0]).shape == (0, 96)


def test_row_counts_of_many_blocks_of_rows(kernels):
    # 2000 rows of 576 are several row blocks and panel chunks.
    x, weight, bias = inputs(2000, 96, 576, torch.float32)
    packed = kernels.pack_linear([weight], [bias])
    whole = kernels.linear(x, packed)
    for row in range(0, 2000, 37):
        assert torch.equal(kernels.linear(x[row : row + 1], packed)[0], whole[row]), row


@pytest.mark.parametrize("hostile", [float("nan"), float("inf"), 3e38, 1e-42])
@pytest.mark.parametrize("weight_dtype", DTYPES)
def test_slots_and_hostile_neighbours_cannot_reach_a_row(kernels, hostile, weight_dtype):
    for rows in (2, 6, 14, 15, 29):
        x, weight, _ = inputs(1, 40, 577, torch.float32)
        packed = kernels.pack_linear([weight.to(weight_dtype)], [None])
        alone = kernels.linear(x, packed)
        for slot in range(rows):
            batch = torch.full((rows, 577), hostile)
            batch[slot] = x[0]
            assert torch.equal(kernels.linear(batch, packed)[slot], alone[0]), (rows, slot)


def test_thread_counts(kernels, threads):
    for length, columns in ((576, 1000), (1536, 576)):
        x, weight, bias = inputs(64, columns, length, torch.float32)
        packed = kernels.pack_linear([weight], [bias])
        for rows in (1, 5, 64):
            results = []
            for count in (1, 2, 3, 8):
                with threads(count):
                    results.append(kernels.linear(x[:rows], packed))
            assert all(torch.equal(results[0], other) for other in results[1:])


@pytest.mark.parametrize("weight_dtype", DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_register_widths(kernels_by_width, dtype, weight_dtype):
    assert len(kernels_by_width) > 1, "this host runs one width only, so nothing is compared"
    for length, columns in SHAPES:
        x, weight, bias = inputs(15, columns, length, dtype)
        results = []
        for kernels in kernels_by_width.values():
            packed = kernels.pack_linear([weight.to(weight_dtype)], [bias])
            results.append([kernels.linear(x[:rows], packed) for rows in (1, 3, 4, 7, 15)])
        for other in results[1:]:
            assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True)), (length, columns)


def test_the_order_of_additions_is_the_plan(kernels):
    # The oracle walks the tree one multiply-add at a time in fp64, where these integers and their products are exact,
    # so that the one rounding to fp32 is that of the fused multiply-add.
    length, columns = 41, 7
    generator = torch.Generator().manual_seed(1)
    x = torch.randint(-(2**20), 2**20, (1, length), generator=generator).float()
    weight = torch.randint(-(2**20), 2**20, (columns, length), generator=generator).float()
    packed = kernels.pack_linear([weight], [None])
    plan = packed.plan
    assert (plan.leaves, plan.leaf_length) == (8, 6)
    partials = []
    for leaf in range(plan.leaves):
        total = torch.zeros(columns, dtype=torch.float64)
        for k in range(leaf * plan.leaf_length, min(length, (leaf + 1) * plan.leaf_length)):
            total = (total + x[0, k].double() * weight[:, k].double()).float().double()
        partials.append(total.float())
    while len(partials) > 1:
        partials = [a + b for a, b in zip(partials[0::2], partials[1::2], strict=True)]
    assert torch.equal(kernels.linear(x, packed)[0], partials[0])
    assert not torch.equal((x.double() @ weight.double().T).float()[0], partials[0]), "the sums were exact: no test"


def test_a_row_in_a_wider_matrix_and_joined_weights(kernels):
    x, weight, bias = inputs(6, 70, 96, torch.float32)
    wide = torch.full((6, 200), float("nan"))
    wide[:, 17:113] = x
    whole = kernels.linear(x, kernels.pack_linear([weight], [bias]))
    assert torch.equal(kernels.linear(wide[:, 17:113], kernels.pack_linear([weight], [bias])), whole)
    parts = kernels.pack_linear([weight[:33], weight[33:34], weight[34:]], [bias[:33], None, bias[34:]])
    joined = kernels.linear(x, parts)
    assert torch.equal(joined[:, :33], whole[:, :33])
    assert torch.equal(joined[:, 34:], whole[:, 34:])


def test_subnormals_are_kept_whatever_mode_the_caller_is_in(kernels, threads):
    x = torch.full((4, 64), 2.0**-70)
    weight = torch.full((600, 64), 2.0**-70)
    packed = kernels.pack_linear([weight], [None])
    expected = torch.full((4, 600), 64 * 2.0**-140)
    assert bool((expected > 0).all())
    try:
        assert torch.set_flush_denormal(True)
        with threads(2):
            result = kernels.linear(x, packed)
        flushed = bool(torch.tensor([2.0**-140]) * 0.5 == 0)
    finally:
        torch.set_flush_denormal(False)
    assert flushed, "the caller's mode was not restored"
    assert torch.equal(result, expected)


# K up to the widest the README promises; zero-mean and all-positive data, where long chains are worst.
@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", [576, 1536, 4096, 14336])
def test_error_at_most_twice_that_of_torch(kernels, length, dtype, positive):
    x, weight, _ = inputs(16, 64, length, torch.float32)
    if positive:
        x, weight = x.abs(), weight.abs()
    x, weight = x.to(dtype), weight.to(dtype)
    exact = x.double() @ weight.double().T

    def error(result):
        return (result.double() - exact).square().mean().sqrt()

    ours = kernels.linear(x, kernels.pack_linear([weight], [None]))
    assert error(ours) <= 2 * error(linear(x, weight))


def test_the_library_default_fails_the_property_that_ours_passes(kernels):
    x, weight, _ = inputs(70, 96, 576, torch.float32)
    alone = torch.cat([linear(x[row : row + 1], weight) for row in range(70)])
    assert not all(torch.equal(linear(x[:rows], weight), alone[:rows]) for rows in range(1, 71))


def test_refusals_name_the_dtype_and_the_shape(kernels):
    x, weight, _ = inputs(2, 5, 8, torch.float32)
    packed = kernels.pack_linear([weight], [None])
    with pytest.raises(KernelError, match="float64"):
        kernels.linear(x.double(), packed)
    with pytest.raises(KernelError, match="rows of 8 elements"):
        kernels.linear(x[:, :7], packed)
    with pytest.raises(KernelError, match="in host memory"):
        kernels.linear(x.to("meta"), packed)
    with pytest.raises(KernelError, match="float16"):
        kernels.pack_linear([weight.half()], [None])
    with pytest.raises(KernelError, match="one dtype"):
        kernels.pack_linear([weight, weight.bfloat16()], [None, None])
