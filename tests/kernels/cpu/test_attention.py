"""Paged attention: decode == chunk == prefill == verification, on any pages, beside any neighbours, bit for bit."""

import itertools

import pytest
import torch

from detharness.errors import KernelError
from detharness.kernels.contract import PagedBatch
from detharness.kernels.reference.attention import attention as exact

# (heads, kv heads, head size): SmolLM2, a size that is no multiple of sixteen, one group of eight, no grouping.
SHAPES = [(9, 3, 64), (4, 2, 40), (8, 1, 128), (2, 2, 16)]
DTYPES = [torch.float32, torch.bfloat16]


class Sequence:
    """Queries, keys and values of one request, all positions."""

    def __init__(self, length, shape, dtype, seed):
        heads, kv_heads, width = shape
        generator = torch.Generator().manual_seed(seed)
        self.q = torch.randn(length, heads, width, generator=generator).to(dtype)
        self.k = torch.randn(length, kv_heads, width, generator=generator).to(dtype)
        self.v = torch.randn(length, kv_heads, width, generator=generator).to(dtype)


def run(kernels, pieces, *, window=None, page_size=16, seed=0, poison=float("nan"), scale=None):
    """One step over (sequence, first row, end row) pieces; every slot that no row may read holds ``poison``."""
    generator = torch.Generator().manual_seed(seed)
    first = pieces[0][0]
    counts = [-(-end // page_size) for _, _, end in pieces]
    numbers = torch.randperm(sum(counts) + 3, generator=generator).tolist()
    shape = (len(numbers), page_size, *first.k.shape[1:])
    k_pages = torch.full(shape, poison, dtype=first.k.dtype)
    v_pages = torch.full(shape, poison, dtype=first.k.dtype)
    tables = torch.full((len(pieces), max(counts)), -1)
    queries, positions, slots, starts = [], [], [], [0]
    for index, (sequence, begin, end) in enumerate(pieces):
        table = [numbers.pop() for _ in range(counts[index])]
        tables[index, : len(table)] = torch.tensor(table)
        lowest = 0 if window is None else max(0, begin - window + 1)
        for at in range(lowest, end):
            k_pages[table[at // page_size], at % page_size] = sequence.k[at]
            v_pages[table[at // page_size], at % page_size] = sequence.v[at]
        queries.append(sequence.q[begin:end])
        positions += range(begin, end)
        slots += [table[at // page_size] * page_size + at % page_size for at in range(begin, end)]
        starts.append(len(positions))
    batch = PagedBatch(
        positions=torch.tensor(positions),
        slots=torch.tensor(slots),
        row_starts=torch.tensor(starts),
        context_lens=torch.tensor([end for _, _, end in pieces]),
        block_tables=tables,
        page_size=page_size,
    )
    operands = (torch.cat(queries), k_pages, v_pages, batch, scale or first.q.shape[2] ** -0.5, window)
    return kernels.attention(*operands), operands


@pytest.mark.parametrize("window", [None, 1, 21, 64, 100])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_decode_chunks_and_prefill_give_the_same_bits(kernels, shape, dtype, window):
    length = 150
    sequence = Sequence(length, shape, dtype, seed=1)
    whole, _ = run(kernels, [(sequence, 0, length)], window=window)
    assert torch.isfinite(whole).all()
    for cuts in ([0, 1, 64, 65, 127, 150], [0, 63, 64, 128, 150], [0, 149, 150], [0, 9, 10, 12, 90, 150]):
        parts = [
            run(kernels, [(sequence, begin, end)], window=window, seed=begin)[0]
            for begin, end in itertools.pairwise(cuts)
        ]
        assert torch.equal(torch.cat(parts), whole), cuts
    for row in (0, 1, 15, 16, 62, 63, 64, 65, 127, 128, 149):
        alone, _ = run(kernels, [(sequence, row, row + 1)], window=window, seed=row)
        assert torch.equal(alone[0], whole[row]), row


@pytest.mark.parametrize("page_size", [1, 7, 16, 64, 100, 256])
def test_page_size_and_placement(kernels, page_size):
    sequence = Sequence(200, SHAPES[0], torch.float32, seed=2)
    whole, _ = run(kernels, [(sequence, 0, 200)])
    for seed in range(3):
        moved, _ = run(kernels, [(sequence, 0, 200)], page_size=page_size, seed=seed)
        assert torch.equal(moved, whole)


@pytest.mark.parametrize("hostile", [float("nan"), 3e38])
def test_neighbours_cannot_reach_a_row(kernels, hostile):
    shape = SHAPES[0]
    sequence = Sequence(130, shape, torch.float32, seed=3)
    alone, _ = run(kernels, [(sequence, 120, 130)])
    wild = Sequence(300, shape, torch.float32, seed=4)
    for tensor in (wild.q, wild.k, wild.v):
        tensor.fill_(hostile)
    for pieces in (
        [(wild, 0, 300), (sequence, 120, 130)],
        [(sequence, 120, 130), (wild, 299, 300)],
        [(wild, 5, 6), (sequence, 120, 130), (wild, 64, 128)],
    ):
        together, operands = run(kernels, pieces)
        starts = operands[3].row_starts.tolist()
        index = next(i for i, piece in enumerate(pieces) if piece[0] is sequence)
        assert torch.equal(together[starts[index] : starts[index + 1]], alone)


def test_a_later_token_of_the_same_request_is_not_read(kernels):
    sequence = Sequence(90, SHAPES[0], torch.float32, seed=5)
    whole, _ = run(kernels, [(sequence, 0, 90)])
    sequence.k[70:] = float("nan")
    sequence.v[70:] = float("inf")
    damaged, _ = run(kernels, [(sequence, 0, 90)])
    assert torch.equal(damaged[:70], whole[:70])
    assert torch.isnan(damaged[70:]).all()


def test_long_contexts_on_any_thread_count(kernels, threads):
    # Few rows over many blocks take the path that splits a context between threads; one thread does not.
    sequence = Sequence(700, SHAPES[0], torch.float32, seed=6)
    for window in (None, 333):
        for begin in (699, 695):
            results = []
            for count in (1, 2, 3, 8):
                with threads(count):
                    results.append(run(kernels, [(sequence, begin, 700)], window=window)[0])
            assert all(torch.equal(results[0], other) for other in results[1:])
            with threads(2):
                whole, _ = run(kernels, [(sequence, 0, 700)], window=window)
            assert torch.equal(results[0], whole[begin:])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_register_widths(kernels_by_width, shape, dtype):
    sequence = Sequence(200, shape, dtype, seed=7)
    results = [
        [run(kernels, [(sequence, 0, 200)], window=window)[0] for window in (None, 50)]
        for kernels in kernels_by_width.values()
    ]
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shape", "window"), [(SHAPES[0], None), (SHAPES[1], 50), (SHAPES[2], None)])
def test_error_at_most_twice_that_of_torch(kernels, library, at_most_twice, shape, window, dtype):
    sequence = Sequence(200, shape, dtype, seed=8)
    # The library multiplies what it masks, so nothing may be poisoned.
    ours, operands = run(kernels, [(sequence, 150, 200)], window=window, poison=0.0)
    at_most_twice(ours, library.attention(*operands), exact(*operands))


def test_a_query_cut_out_of_the_packed_output(kernels):
    sequence = Sequence(20, SHAPES[0], torch.float32, seed=9)
    whole, operands = run(kernels, [(sequence, 0, 20)])
    wide = torch.full((20, 960), float("nan"))
    wide[:, :576] = operands[0].flatten(1)
    assert torch.equal(kernels.attention(wide[:, :576].view(20, 9, 64), *operands[1:]), whole)


def test_a_row_whose_scores_all_overflow_is_nan_not_a_stale_value(kernels):
    sequence = Sequence(70, SHAPES[3], torch.float32, seed=10)
    sequence.q.fill_(1e30)
    sequence.k.fill_(-1e30)
    result, _ = run(kernels, [(sequence, 0, 70)])
    assert torch.isnan(result).all()


def test_refusals(kernels):
    sequence = Sequence(4, SHAPES[0], torch.float32, seed=0)
    _, (q, k_pages, v_pages, batch, scale, window) = run(kernels, [(sequence, 0, 4)])
    with pytest.raises(KernelError, match="do not fit"):
        kernels.attention(q[:, :8], k_pages, v_pages, batch, scale, window)
    with pytest.raises(KernelError, match="share one dtype"):
        kernels.attention(q, k_pages, v_pages.bfloat16(), batch, scale, window)
