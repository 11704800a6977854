from itertools import combinations, product

import pytest

from detharness.probes.combined import FACTORS
from detharness.probes.covering import covering_rows, pairs_covered

CASES = [
    {"a": (0, 1), "b": (0, 1)},
    {"a": (0, 1), "b": (0, 1), "c": (0, 1), "d": (0, 1)},
    {"a": (0,), "b": (0, 1, 2), "c": ("x", "y", None)},
    dict(FACTORS),
]


@pytest.mark.parametrize("factors", CASES)
def test_every_pair_of_levels_stands_in_some_row(factors):
    rows = covering_rows(factors)
    for first, second in combinations(factors, 2):
        for left, right in product(factors[first], factors[second]):
            assert any(row[first] == left and row[second] == right for row in rows)
    covered, pairs = pairs_covered(rows, factors)
    assert covered == pairs


@pytest.mark.parametrize("factors", CASES)
def test_far_fewer_rows_than_the_product_and_no_fewer_than_the_two_widest_factors(factors):
    sizes = sorted(len(levels) for levels in factors.values())
    total = 1
    for size in sizes:
        total *= size
    rows = covering_rows(factors)
    assert sizes[-1] * sizes[-2] <= len(rows) <= total
    if len(factors) > 3:
        assert len(rows) <= total // 2


def test_a_missing_row_shows_in_the_count():
    rows = covering_rows(CASES[1])
    covered, pairs = pairs_covered(rows[:-1], CASES[1])
    assert covered < pairs


def test_each_row_covers_something_new_so_a_cut_run_wastes_none():
    rows = covering_rows(FACTORS)
    counts = [pairs_covered(rows[:count], FACTORS)[0] for count in range(len(rows) + 1)]
    assert counts == sorted(set(counts))


def test_one_factor_gives_its_levels():
    assert covering_rows({"a": (1, 2)}) == [{"a": 1}, {"a": 2}]
