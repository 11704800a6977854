"""``assert_plan_holds``: one plan, every schedule, equal bits."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import combinations

import pytest
import torch

from detharness.kernels.contract import Schedule
from detharness.kernels.pytorch import RowPureKernels
from detharness.testing import BitsMovedError, Normal, NothingComparedError, assert_plan_holds, two_sided

KERNEL = '''
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Plan:
    leaf: int


@dataclass(frozen=True)
class Tiles:
    rows: int


def row_sums(x, plan, schedule):
    """The leaves of the plan one after the other; tiles of rows as the schedule says."""
    return torch.cat([_sums(tile, plan.leaf) for tile in x.split(schedule.rows)])


def row_sums_by_tile(x, plan, schedule):
    """The fault: the leaf follows the tile."""
    return torch.cat([_sums(tile, plan.leaf * schedule.rows) for tile in x.split(schedule.rows)])


def two_results(x, plan, schedule):
    return [x.clone(), row_sums_by_tile(x, plan, schedule)]


def in_place(x, plan, schedule):
    return x.mul_(2.0)


def _sums(tile, leaf):
    total = torch.zeros(len(tile))
    for part in tile.split(leaf, dim=1):
        ascending = torch.zeros(len(tile))
        for column in part.unbind(1):
            ascending = ascending + column
        total = total + ascending
    return total
'''
INPUTS = {"x": Normal(7, 48)}


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "planned.py").write_text(KERNEL)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "planned", raising=False)
    import planned

    return planned


def test_a_kernel_that_keeps_its_plan_passes_and_one_that_does_not_fails(module):
    caught = two_sided(
        sound=module.row_sums,
        faulty=module.row_sums_by_tile,
        check=lambda kernel: assert_plan_holds(
            kernel=kernel, plan=module.Plan(8), schedules=[module.Tiles(n) for n in (1, 2, 3, 7)], inputs=INPUTS
        ),
    )
    assert isinstance(caught, BitsMovedError)
    assert caught.axes == ("schedule",)
    assert (caught.left, caught.right) == ("Tiles(rows=1)", "Tiles(rows=2)")
    assert caught.rows == 7
    assert caught.row == caught.difference.element[0]
    assert "row's bits change with the schedule" in str(caught)


@pytest.mark.parametrize("kernel", ["row_sums_by_tile", "two_results"])
def test_the_reproduction_shows_the_same_values_again(module, capsys, kernel):
    with pytest.raises(BitsMovedError) as caught:
        assert_plan_holds(
            kernel=getattr(module, kernel),
            plan=module.Plan(leaf=8),
            schedules=[module.Tiles(1), module.Tiles(2)],
            inputs=INPUTS,
            seed=3,
        )
    with pytest.raises(AssertionError):
        exec(caught.value.reproduction, {})
    assert capsys.readouterr().out == f"{caught.value.difference.left} {caught.value.difference.right}\n"


def test_every_schedule_is_compared(module):
    count = assert_plan_holds(
        kernel=module.row_sums, plan=module.Plan(8), schedules=[module.Tiles(n) for n in range(1, 6)], inputs=INPUTS
    )
    assert count == 4


def test_a_kernel_may_write_into_its_inputs(module):
    x = torch.ones(3, 2) * torch.arange(2)
    assert_plan_holds(kernel=module.in_place, plan=None, schedules=[1, 2, 3], inputs={"x": x})
    assert x.max() == 1


def test_a_kernel_that_gives_other_bits_each_time_is_told_so():
    calls = iter(range(100))
    with pytest.raises(BitsMovedError) as caught:
        assert_plan_holds(
            kernel=lambda x, plan, schedule: x + next(calls), plan=None, schedules=[1, 2], inputs={"x": Normal(4)}
        )
    assert caught.value.axes == ("run to run",)


@pytest.mark.parametrize("schedules", [[], [1], [1, 1, 1]])
def test_one_schedule_compares_nothing(schedules):
    with pytest.raises(NothingComparedError, match="two at least"):
        assert_plan_holds(kernel=lambda x, plan, schedule: x, plan=None, schedules=schedules, inputs={"x": Normal(4)})


@pytest.mark.parametrize("output", [torch.zeros(4), torch.empty(0), [torch.ones(3), torch.zeros(2, 2)]])
def test_an_output_in_which_nothing_can_move_compares_nothing(output):
    with pytest.raises(NothingComparedError):
        assert_plan_holds(kernel=lambda plan, schedule: output, plan=None, schedules=[1, 2], inputs={})


def test_a_scalar_result_is_compared():
    with pytest.raises(BitsMovedError) as caught:
        assert_plan_holds(
            kernel=lambda x, plan, schedule: x.sum() + schedule, plan=None, schedules=[0, 1], inputs={"x": Normal(4)}
        )
    assert (caught.value.rows, caught.value.row, caught.value.difference.element) == (1, 0, ())


def test_our_own_linear_keeps_its_plan():
    kernels = RowPureKernels()
    packed = kernels.pack_linear([torch.randn(33, 300, generator=torch.Generator().manual_seed(1))], [None])
    tiles = packed.schedule.row_tiles
    schedules = [Schedule(subset) for count in (1, 2) for subset in combinations(tiles, count)]
    assert len(schedules) > 3

    def linear(x, plan, schedule):
        return kernels.linear(x, replace(packed, plan=plan, schedule=schedule))

    assert_plan_holds(kernel=linear, plan=packed.plan, schedules=schedules, inputs={"x": Normal(70, 300)})
