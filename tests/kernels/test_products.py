"""Batched products: single-item bits at every item count, and counts that disagree are never used."""

from __future__ import annotations

import pytest
import torch

from detharness.errors import KernelError
from detharness.kernels.pytorch.products import COUNTS, BatchedProduct


class Faulty(BatchedProduct):
    """Adds a fault to the library's product once ``armed``, after the row probe."""

    armed = False

    def __init__(self, fault):
        super().__init__("faulty", 16, 64, transposed=True)
        self._fault = fault
        self.armed = True

    def _multiply(self, left, right):
        result = super()._multiply(left, right)
        return self._fault(result) if self.armed else result


def operands(items, product_tile=4, depth=16, columns=64, transposed=True):
    generator = torch.Generator().manual_seed(items)
    right = (columns, depth) if transposed else (depth, columns)
    return torch.randn(items, product_tile, depth, generator=generator), torch.randn(items, *right, generator=generator)


@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.parametrize(("depth", "columns"), [(16, 64), (64, 40)])
def test_an_item_gets_single_item_bits_among_any_number(same_bits, threads, depth, columns, transposed):
    product = BatchedProduct("x", depth, columns, transposed=transposed)
    for tile in product.probe.kept:
        left, right = operands(37, tile, depth, columns, transposed)
        alone = torch.cat([product(left[i : i + 1], right[i : i + 1]) for i in range(37)])
        for items in (1, 2, 3, 5, 8, 9, 31, 37):
            assert same_bits(product(left[:items], right[:items]), alone[:items])
        with threads(2):
            assert same_bits(product(left, right), alone)
        assert same_bits(product(left.flip(0), right.flip(0)), alone.flip(0))


def test_more_items_than_the_largest_count_are_worked_through_in_pieces(same_bits):
    product = BatchedProduct("x", 16, 64, transposed=True)
    left, right = operands(COUNTS[-1] + 3)
    result = product(left, right)
    assert same_bits(result[-3:], product(left[-3:], right[-3:]))


def last_item_when_eight(result):
    result = result.clone()
    result[-1] += 1e-3 * (len(result) == 8)
    return result


def every_item_from_sixteen(result):
    return result * (1.0 + 1e-3 * (len(result) >= 16))


def four_items_on_two_threads(result):
    return result * (1.0 + 1e-3 * (len(result) == 4 and torch.get_num_threads() == 2))


@pytest.mark.parametrize(
    ("fault", "dropped"),
    [
        (last_item_when_eight, {8}),
        (every_item_from_sixteen, {count for count in COUNTS if count >= 16}),
        (four_items_on_two_threads, {4}),
    ],
)
def test_a_count_that_disagrees_is_never_used(same_bits, fault, dropped):
    used = set()

    def watched(result):
        used.add(len(result))
        return fault(result)

    product, sound = Faulty(watched), BatchedProduct("x", 16, 64, transposed=True)
    left, right = operands(37)
    product(left, right)  # Certifies the counts, and tries every one of them.
    assert used == set(COUNTS)
    used.clear()
    for items in (1, 3, 4, 7, 8, 20, 37):
        assert same_bits(product(left[:items], right[:items]), sound(left[:items], right[:items]))
    assert used
    assert not used & dropped


def test_a_product_that_repeats_no_bits_is_refused():
    calls = []

    def drifting(result):
        calls.append(1)
        return result + len(calls)

    with pytest.raises(KernelError, match=r"^faulty: no item count gives the same bits twice"):
        Faulty(drifting)(*operands(2))
