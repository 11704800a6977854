"""Paged attention: a row's bits depend on its query, its position and its own KV prefix alone.

Decode = chunk = prefill, for any page size, page order, neighbour and thread count; what is masked or not owned is
never read. The library default fails the same check (decode against prefill). Accuracy is held against fp64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from detharness.kernels.contract import KernelSet, PagedBatch, Schedule
from detharness.kernels.library import LibraryKernels
from detharness.kernels.pytorch import RowPureKernels
from detharness.kernels.reference.attention import attention as exact_attention

DTYPES = (torch.float32, torch.bfloat16)


@dataclass(frozen=True)
class History:
    """One request's whole history: q [L, H, D], k and v [L, Hkv, D]; position = row."""

    q: Tensor
    k: Tensor
    v: Tensor


def history(length, heads, kv_heads, width, dtype, seed=0, scale=1.0):
    generator = torch.Generator().manual_seed(seed + 1000 * length + width)
    return History(
        *(
            (torch.randn(length, count, width, generator=generator) * scale).to(dtype)
            for count in (heads, kv_heads, kv_heads)
        )
    )


def play(
    kernels: KernelSet,
    pieces: Sequence[tuple[History, int, int]],
    *,
    page_size: int = 16,
    window: int | None = None,
    order: Callable[[int], list[int]] = lambda count: list(range(count)),
    foul: float = float("nan"),
) -> list[Tensor]:
    """One step over ``pieces`` (sequence, first row, past-the-last row); returns each piece's output rows.

    Every slot that no piece owns, and two pages more than needed, hold ``foul``.
    """
    needed = [-(-stop // page_size) for _, _, stop in pieces]
    pages = order(sum(needed) + 2)
    _, kv_heads, width = pieces[0][0].k.shape
    dtype = pieces[0][0].k.dtype
    k_pages, v_pages = (torch.full((len(pages), page_size, kv_heads, width), foul, dtype=dtype) for _ in range(2))
    tables = torch.full((len(pieces), max(needed)), -1)
    starts, slots, positions = [0], [], []
    for index, (sequence, first, stop) in enumerate(pieces):
        own = torch.tensor([pages.pop() for _ in range(needed[index])])
        tables[index, : needed[index]] = own
        at = torch.arange(stop)
        place = own[at // page_size] * page_size + at % page_size
        kernels.write_kv(sequence.k[:stop], sequence.v[:stop], k_pages, v_pages, place)
        slots.append(place[first:])
        positions.append(at[first:])
        starts.append(starts[-1] + stop - first)
    batch = PagedBatch(
        positions=torch.cat(positions),
        slots=torch.cat(slots),
        row_starts=torch.tensor(starts),
        context_lens=torch.tensor([stop for _, _, stop in pieces]),
        block_tables=tables,
        page_size=page_size,
    )
    q = torch.cat([sequence.q[first:stop] for sequence, first, stop in pieces])
    output = kernels.attention(q, k_pages, v_pages, batch, width**-0.5, window)
    assert output.shape == q.shape
    assert output.dtype == q.dtype
    return list(output.split([stop - first for _, first, stop in pieces]))


def moves(kernels, sequence, same_bits, *, decoded, window=None) -> set[str]:
    """The axes along which an output row of ``sequence`` changes a bit; ``decoded`` are the lengths tried alone."""
    length = len(sequence.q)
    prefill = play(kernels, [(sequence, 0, length)], window=window)[0]
    found = set()

    def compare(axis: str, actual: Tensor, wanted: Tensor) -> None:
        if not same_bits(actual, wanted):
            found.add(axis)

    for stop in decoded:
        compare("decode", play(kernels, [(sequence, stop - 1, stop)], window=window)[0], prefill[stop - 1 : stop])
    for chunk in (7, 64, 100):
        for first in range(0, length, chunk):
            stop = min(first + chunk, length)
            compare("chunk", play(kernels, [(sequence, first, stop)], window=window)[0], prefill[first:stop])
    return found


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "kv_heads", "width"), [(2, 2, 16), (3, 1, 40), (8, 2, 64), (4, 4, 128), (6, 2, 16)])
@pytest.mark.parametrize("window", [None, 21])
def test_decode_chunk_and_prefill_are_one(ours, same_bits, heads, kv_heads, width, window, dtype):
    sequence = history(130, heads, kv_heads, width, dtype)
    decoded = (1, 2, 5, 62, 63, 64, 65, 66, 127, 128, 129, 130)
    assert moves(ours, sequence, same_bits, decoded=decoded, window=window) == set()


@pytest.mark.parametrize("window", [1, 2, 63, 64, 65, 128])
def test_windows_around_the_grid_too(ours, same_bits, window):
    sequence = history(130, 2, 1, 16, torch.float32)
    assert moves(ours, sequence, same_bits, decoded=(1, 63, 64, 65, 66, 128, 129, 130), window=window) == set()


def test_the_library_default_fails_the_same_check(library, same_bits):
    sequence = history(130, 8, 2, 64, torch.float32)
    assert "decode" in moves(library, sequence, same_bits, decoded=(1, 5, 64, 65, 129, 130))


@pytest.mark.parametrize("window", [None, 50])
@pytest.mark.parametrize("page_size", [1, 5, 16, 64])
def test_pages_cannot_be_seen(ours, same_bits, page_size, window):
    sequence, other = history(129, 6, 2, 40, torch.float32), history(70, 6, 2, 40, torch.float32, seed=5)
    expected = play(ours, [(sequence, 0, 129)], window=window)[0]

    def shuffled(count):
        return torch.randperm(count, generator=torch.Generator().manual_seed(count)).tolist()

    for foul in (float("nan"), float("inf"), 3e38, 0.0):
        rows = play(
            ours,
            [(other, 69, 70), (sequence, 100, 129), (other, 0, 33)],
            page_size=page_size,
            window=window,
            order=shuffled,
            foul=foul,
        )[1]
        assert same_bits(rows, expected[100:])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("hostile", [1.0, 1e38, float("nan"), float("inf")])
def test_neighbours_cannot_be_seen(ours, same_bits, hostile, dtype):
    sequence = history(100, 8, 2, 16, dtype)
    alone = play(ours, [(sequence, 90, 100)])[0]
    decode = play(ours, [(sequence, 99, 100)])[0]
    assert same_bits(decode, alone[-1:])
    near = [history(length, 8, 2, 16, dtype, seed=9, scale=hostile) for length in (1, 64, 65, 200)]
    for count in range(1, len(near) + 1):
        others = [
            (other, len(other.q) - 1 - index % 2 * (len(other.q) // 2), len(other.q))
            for index, other in enumerate(near[:count])
        ]
        for slot in range(count + 1):
            pieces = [*others[:slot], (sequence, 90, 100), *others[slot:]]
            assert same_bits(play(ours, pieces)[slot], alone)
        assert same_bits(play(ours, [*others, (sequence, 99, 100)])[-1], decode)


def test_many_decodes_at_once_are_each_alone(ours, same_bits, threads):
    sequences = [history(length, 4, 2, 16, torch.float32, seed=length) for length in range(60, 131)]
    pieces = [(sequence, len(sequence.q) - 1, len(sequence.q)) for sequence in sequences]
    together = torch.cat(play(ours, pieces))
    assert same_bits(together, torch.cat([play(ours, [piece])[0] for piece in pieces]))
    for count in (1, 2):
        with threads(count):
            assert same_bits(torch.cat(play(ours, pieces)), together)
            assert same_bits(torch.cat(play(ours, pieces[::-1])[::-1]), together)


def test_every_schedule_gives_the_same_bits(ours, same_bits, monkeypatch):
    sequence, other = history(70, 6, 2, 40, torch.float32), history(9, 6, 2, 40, torch.float32, seed=1)
    pieces = [(other, 8, 9), (sequence, 0, 70)]
    expected = torch.cat(play(ours, pieces))
    products = ours._attention._products
    scores, values, schedule = products[40]
    assert schedule.row_tiles
    for size in schedule.row_tiles:
        monkeypatch.setitem(products, 40, (scores, values, Schedule((size,))))
        assert same_bits(torch.cat(play(ours, pieces)), expected)
    # Steps worked through a few pairs at a time.
    monkeypatch.setattr("detharness.kernels.pytorch.attention.PARTIALS", 64 * 64 * 2 * 3)
    assert same_bits(torch.cat(play(ours, pieces)), expected)


def test_a_query_of_any_layout_is_accepted(ours, same_bits):
    sequence = history(30, 4, 2, 16, torch.float32)
    expected = play(ours, [(sequence, 0, 30)])[0]
    buffer = torch.full((30 * 64 + 1,), torch.nan)
    shifted = buffer[1:].view(30, 4, 16)
    shifted.copy_(sequence.q)
    packed = torch.cat([sequence.q, sequence.k], dim=1)[:, :4]
    transposed = sequence.q.transpose(0, 2).contiguous().transpose(0, 2)
    for q in (shifted, packed, transposed):
        # ``torch.cat`` of a single piece would copy the layout away.
        batch, pages = one_request(ours, sequence)
        assert same_bits(ours.attention(q, *pages, batch, 0.25, None), expected)


def one_request(kernels, sequence):
    """A batch of one whole prefill in pages of 16, and its pages."""
    length = len(sequence.q)
    count = -(-length // 16)
    pages = tuple(torch.full((count, 16, *sequence.k.shape[1:]), torch.nan) for _ in range(2))
    at = torch.arange(length)
    kernels.write_kv(sequence.k, sequence.v, *pages, at)
    batch = PagedBatch(
        positions=at,
        slots=at,
        row_starts=torch.tensor([0, length]),
        context_lens=torch.tensor([length]),
        block_tables=torch.arange(count)[None],
        page_size=16,
    )
    return batch, pages


def test_a_block_that_is_masked_for_a_row_is_an_exact_no_op(ours, same_bits):
    # Rows 60 to 69 share a tile and two blocks: block 1 is masked for rows up to 63. With a window of 3, block 0 is
    # masked for rows from 66. Huge keys and values there must not move a bit, and neither must their sign.
    calm, wild = history(70, 4, 1, 16, torch.float32), history(70, 4, 1, 16, torch.float32)
    for sign in (1.0, -1.0):
        wild.k[64:], wild.v[64:] = sign * 1e18, sign * 3e38
        assert same_bits(play(ours, [(wild, 60, 70)])[0][:4], play(ours, [(calm, 60, 64)])[0])
        restored = History(wild.q, wild.k.clone(), wild.v.clone())
        restored.k[:], restored.v[:] = calm.k, calm.v
        restored.k[:61], restored.v[:61] = sign * 1e18, sign * 3e38
        expected = play(ours, [(calm, 60, 70)], window=3)[0]
        assert same_bits(play(ours, [(restored, 60, 70)], window=3)[0][3:], expected[3:])


@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_a_fully_masked_block_may_hold_anything(ours, same_bits, poison):
    # Rows 60 to 69 share a tile. The request's own block 1 is masked for the first four of them.
    calm, poisoned = history(70, 4, 1, 16, torch.float32), history(70, 4, 1, 16, torch.float32)
    poisoned.k[64:], poisoned.v[64:] = poison, poison
    assert same_bits(play(ours, [(poisoned, 60, 70)])[0][:4], play(ours, [(calm, 60, 64)])[0])


def test_blocks_are_merged_in_ascending_order(ours):
    # Equal scores, and three blocks whose sums are 1, 1e8 and -1e8: (1 + 1e8) - 1e8 is 0 in fp32, and another order of
    # these three gives 1. Every decode, chunk and prefill must take this one.
    sequence = history(192, 1, 1, 16, torch.float32)
    sequence.q[:] = 0.0
    sequence.v[:] = 0.0
    sequence.v[0], sequence.v[64], sequence.v[128] = 1.0, 1e8, -1e8
    for first in (0, 150, 191):
        assert play(ours, [(sequence, first, 192)])[0][-1].abs().max() == 0.0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("foul", [float("nan"), float("inf"), float("-inf")])
def test_not_even_its_own_later_tokens_reach_a_row(ours, same_bits, foul, dtype):
    # Token 64 starts block 1; rows 50 to 69 share tiles and blocks with it. Key and value of head 0 alone are foul.
    calm, wild = history(70, 4, 2, 16, dtype), history(70, 4, 2, 16, dtype)
    for token in (60, 64, 69):
        wild.k[token, 0], wild.v[token, 0, 3] = foul, foul
        expected = play(ours, [(calm, 50, 70)])[0]
        rows = play(ours, [(wild, 50, 70)])[0]
        assert same_bits(rows[: token - 50], expected[: token - 50])
        assert same_bits(rows[:, 2:], expected[:, 2:])  # The heads of the other key head.
        assert torch.isnan(rows[token - 50 :, :2, 3]).all()  # It is not swept under the rug where it is seen.
        wild.k[token, 0], wild.v[token, 0] = calm.k[token, 0], calm.v[token, 0]


def test_a_value_that_is_not_finite_fouls_its_own_component_alone(ours, same_bits):
    calm, wild = history(70, 4, 2, 16, torch.float32), history(70, 4, 2, 16, torch.float32)
    wild.v[10, 0, 3] = torch.nan
    for window in (None, 20):
        expected, rows = (play(ours, [(sequence, 0, 70)], window=window)[0] for sequence in (calm, wild))
        last = 70 if window is None else 10 + window
        assert torch.isnan(rows[10:last, :2, 3]).all()
        rows[10:last, :2, 3] = expected[10:last, :2, 3]
        assert same_bits(rows, expected)


def test_the_first_token_attends_itself(ours):
    sequence = history(1, 4, 2, 16, torch.float32)
    expected = sequence.v.repeat_interleave(2, dim=1)
    assert torch.equal(play(ours, [(sequence, 0, 1)])[0], expected)


def test_values_of_zero_give_positive_zero(ours, same_bits):
    sequence = history(70, 2, 2, 16, torch.float32)
    for zero in (0.0, -0.0):
        sequence.v[:] = zero
        assert same_bits(play(ours, [(sequence, 0, 70)])[0], torch.zeros(70, 2, 16))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [None, 70])
@pytest.mark.parametrize(("heads", "kv_heads", "width"), [(2, 2, 16), (3, 1, 40), (4, 1, 128)])
def test_the_error_is_at_most_twice_the_librarys(ours, at_most_twice, heads, kv_heads, width, window, dtype):
    sequence, other = (history(length, heads, kv_heads, width, dtype, scale=2.0) for length in (150, 3))
    pieces = [(other, 0, 3), (sequence, 125, 150)]

    exact: list[Tensor] = []

    class WithOracle(LibraryKernels):
        def attention(self, *operands):
            exact.append(exact_attention(*operands))
            return super().attention(*operands)

    theirs = torch.cat(play(WithOracle(), pieces, window=window))
    at_most_twice(torch.cat(play(ours, pieces, window=window)), theirs, exact[0])


def test_plans_and_probes_are_reported():
    kernels = RowPureKernels()
    play(kernels, [(history(5, 2, 2, 16, torch.float32), 0, 5)])
    assert kernels.plan_ids() == (
        "attention.scores:16=1x16:certified-bmm:ascending",
        "attention.softmax:64=8x8:halving:pairwise",
        "attention.values:64=1x64:certified-bmm:ascending",
    )
    assert [probe["product"] for probe in kernels.tile_probes()] == [
        "attention scores 16x64",
        "attention values 64x16",
    ]
