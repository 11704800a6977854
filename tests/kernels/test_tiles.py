"""The bit probe of row tiles: it keeps what is pure, drops what disagrees, and refuses what cannot be pure."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from detharness.errors import KernelError
from detharness.kernels.contract import Schedule
from detharness.kernels.pytorch.tiles import (
    CANDIDATE_TILES,
    cut,
    probe_tiles,
    shared_schedule,
    thread_counts,
)
from detharness.kernels.threads import intraop_threads

WIDTH = 24
WEIGHT = torch.randn(WIDTH, 5, generator=torch.Generator().manual_seed(7))


def pure(tile):
    """Each row by itself, so nothing else can enter."""
    return torch.stack([(row[:, None] * WEIGHT).sum(0) for row in tile])


def by_slot(tile):
    return pure(tile) + torch.arange(len(tile))[:, None] * 1e-3


def by_last_slot(tile):
    result = pure(tile)
    result[-1] += 1e-3
    return result


def mirrored_slot(tile):
    result = pure(tile)
    result[[0, -1]] += 1e-3
    return result


def by_nan_neighbour(tile):
    return pure(tile) + 0.0 * tile.sum()


def by_huge_neighbour(tile):
    """A scale shared by the tile, as quantisers have, which ignores what is not finite."""
    huge = tile.abs().nan_to_num(0.0, posinf=0.0).amax() > 1e30
    return pure(tile) * (1.0 + 1e-3 * float(huge))


def one_slot_leaks_into_another(tile):
    result = pure(tile)
    result[1] += 0.0 * tile[0].sum()
    return result


def a_late_slot_leaks_into_an_earlier_one(tile):
    result = pure(tile)
    result[1] += 0.0 * tile[3].sum()
    return result


def by_threads(tile):
    return pure(tile) * (1.0 + 1e-3 * torch.get_num_threads())


FAULTS = (
    by_slot,
    by_last_slot,
    mirrored_slot,
    by_nan_neighbour,
    by_huge_neighbour,
    one_slot_leaks_into_another,
    a_late_slot_leaks_into_an_earlier_one,
    by_threads,
)


def test_a_pure_product_keeps_every_tile():
    probe = probe_tiles("pure", pure, WIDTH)
    assert (probe.product, probe.kept, probe.dropped) == ("pure", CANDIDATE_TILES, ())
    assert probe.schedule == Schedule(CANDIDATE_TILES)


@pytest.mark.parametrize("fault", FAULTS)
def test_an_impure_product_is_refused_by_name(fault):
    with pytest.raises(KernelError, match=r"^some product: no row tile of .* use --kernels torch$"):
        probe_tiles("some product", fault, WIDTH)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("size", [4, 16, 64])
def test_a_fault_at_one_size_drops_that_size(fault, size):
    probe = probe_tiles("x", lambda tile: fault(tile) if len(tile) == size else pure(tile), WIDTH)
    assert probe.dropped == (size,)
    assert probe.kept == tuple(other for other in CANDIDATE_TILES if other != size)


@pytest.mark.parametrize("size", [4, 8, 16, 32])
def test_a_pure_size_with_other_bits_is_dropped(size):
    probe = probe_tiles("x", lambda tile: pure(tile) * (1.0 + 1e-3 * (len(tile) == size)), WIDTH)
    assert probe.dropped == (size,)


def test_the_largest_pure_size_is_the_reference():
    probe = probe_tiles("x", lambda tile: pure(tile) * (1.0 + 1e-3 * (len(tile) == 64)), WIDTH)
    assert probe.kept == (64,)


def test_the_probe_leaves_torchs_threads_alone():
    before = torch.get_num_threads()
    probe_tiles("x", pure, WIDTH)
    with pytest.raises(ZeroDivisionError), intraop_threads(2):
        _ = 1 / 0
    assert torch.get_num_threads() == before


def test_the_probe_plays_two_threads_even_where_torch_runs_one(threads):
    with threads(1):
        assert {1, 2} <= set(thread_counts())
    with threads(7):
        assert {1, 2, 4, 7} <= set(thread_counts())


def test_a_thread_count_that_was_not_probed_is_refused(ours, threads):
    packed = ours.pack_linear([WEIGHT.T.contiguous()], [None])
    x = torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(8))
    with threads(max(thread_counts()) + 1), pytest.raises(KernelError, match=r"was probed with .* threads"):
        ours.linear(x, packed)
    ours.linear(x, packed)


@pytest.fixture
def narrow():
    torch.set_float32_matmul_precision("medium")
    yield
    torch.set_float32_matmul_precision("highest")


def test_narrow_products_are_refused_when_packing_and_when_running(ours, request):
    x, weight = torch.randn(3, 11), torch.randn(5, 11)
    packed = ours.pack_linear([weight], [None])
    request.getfixturevalue("narrow")
    with pytest.raises(KernelError, match=r"set to multiply fp32 matrices in bf16"):
        ours.linear(x, packed)
    with pytest.raises(KernelError, match=r"set to multiply fp32 matrices in bf16"):
        ours.pack_linear([torch.randn(6, 13)], [None])


def test_autocast_is_refused(ours):
    x, packed = torch.randn(3, 11), ours.pack_linear([torch.randn(5, 11)], [None])
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(KernelError, match=r"torch\.autocast"):
        ours.linear(x, packed)
    ours.linear(x, packed)


def test_parts_share_the_tiles_that_all_allow():
    schedules = [Schedule((4, 8, 64)), Schedule((8, 16, 64))]
    assert shared_schedule("x", schedules) == Schedule((8, 64))
    with pytest.raises(KernelError, match=r"^two halves: its parts share no row tile"):
        shared_schedule("two halves", [Schedule((4,)), Schedule((8,))])


SCHEDULES = st.sets(st.sampled_from(CANDIDATE_TILES), min_size=1).map(lambda sizes: Schedule(tuple(sorted(sizes))))


@given(rows=st.integers(1, 400), schedule=SCHEDULES)
def test_a_cut_covers_every_row_once(rows, schedule):
    pieces = cut(rows, schedule)
    assert pieces[0][0] == 0
    assert all(start + filled == following for (start, filled, _), (following, _, _) in pairwise(pieces))
    assert pieces[-1][0] + pieces[-1][1] == rows
    assert all(filled == size for _, filled, size in pieces[:-1])
    assert all(0 < filled <= size and size in schedule.row_tiles for _, filled, size in pieces)
    # Padding costs less than the smallest tile, or less than half of the last one.
    _, filled, size = pieces[-1]
    assert size - filled < max(schedule.row_tiles[0], size / 2)


def test_nothing_is_cut_from_no_rows():
    assert cut(0, Schedule((4,))) == []
