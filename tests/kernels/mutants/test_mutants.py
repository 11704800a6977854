"""Every mutant is faulty at its operator, where the sound kernels are not: two calls that must agree, and do not.

A case computes one row twice, in two circumstances that a row must not know. Under the sound kernels both give the same
bits; under the mutant they differ. So no mutant is faulty by accident, and no case is one that sound kernels fail too.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from detharness.errors import UsageError
from detharness.kernels.contract import OPERATORS, KernelSet, PagedBatch, SamplingRows, kernel_set
from detharness.kernels.mutants import MUTANTS, FaultyKernels, mutants_named
from detharness.kernels.threads import intraop_threads

WIDTH, PAGE, HEADS, KV_HEADS, HEAD = 96, 8, 4, 2, 24
Two = tuple[Tensor, Tensor]


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


MINE = noise(1, WIDTH, seed=1)


def company(count: int, slot: int = 0, *, scale: float = 1.0, width: int = WIDTH, seed: int = 2) -> Tensor:
    """``count`` rows, the watched one at ``slot``."""
    rows = noise(count, width, seed=seed) * scale
    rows[slot] = noise(1, width, seed=1)
    return rows


def linear(kernels: KernelSet, *steps: tuple[Tensor, int]) -> Two:
    packed = kernels.pack_linear([noise(128, WIDTH, seed=3) * 0.1], [noise(128, seed=4)])
    one, two = (kernels.linear(rows, packed)[slot] for rows, slot in steps)
    return one, two


def norm(one: int, two: int) -> Callable[[KernelSet], Two]:
    """The rows that a step of ``one`` and a step of ``two`` rows share; a dozen heads each, as few sums move."""
    everybody, weight = noise(40, 12, WIDTH), noise(WIDTH, seed=5)

    def case(kernels: KernelSet) -> Two:
        return kernels.rms_norm(everybody[:one], weight, 1e-5), kernels.rms_norm(everybody[:two], weight, 1e-5)[:one]

    return case


def threads(kernels: KernelSet) -> Two:
    with intraop_threads(1):
        one = linear(kernels, (MINE, 0), (MINE, 0))[0]
    with intraop_threads(2):
        return one, linear(kernels, (MINE, 0), (MINE, 0))[0]


def experts(kernels: KernelSet) -> Two:
    packed = kernels.pack_linear([noise(64, 80, seed=3)], [None])
    rows = noise(8, 160, seed=2)
    one = kernels.linear(kernels.silu_and_mul(rows), packed)
    return one, kernels.linear(kernels.silu_and_mul(rows.flip(0)), packed).flip(0)


def gating(kernels: KernelSet) -> Two:
    return kernels.silu_and_mul(company(1, width=320))[0], kernels.silu_and_mul(company(2, width=320))[0]


def rope(kernels: KernelSet) -> Two:
    q, k, angles = noise(3, HEADS, HEAD), noise(3, KV_HEADS, HEAD), noise(3, HEAD // 2, seed=6)
    one = kernels.rope(q, k, angles.cos(), angles.sin())[0][2]
    return one, kernels.rope(q[2:], k[2:], angles[2:].cos(), angles[2:].sin())[0][0]


@dataclass
class Pool:
    """Pages of one layer. A request's keys and values follow from its name and position alone."""

    kernels: KernelSet
    pages: int = 40
    page: int = PAGE
    fill: float = 0.0

    def __post_init__(self) -> None:
        shape = (self.pages, self.page, KV_HEADS, HEAD)
        self.k, self.v = torch.full(shape, self.fill), torch.full(shape, self.fill)

    def attend(self, *requests: tuple[int, int, int, list[int]], window: int | None = None) -> list[Tensor]:
        """Requests of (name, context, rows, pages): writes them whole, and returns the last row's output of each."""
        for name, context, _, table in requests:
            at = torch.arange(context)
            slots = torch.tensor(table)[at // self.page] * self.page + at % self.page
            k, v = noise(2, 160, KV_HEADS, HEAD, seed=10 + name)[:, :context]
            self.k.view(-1, KV_HEADS, HEAD)[slots], self.v.view(-1, KV_HEADS, HEAD)[slots] = k, v
        batch, q = self._batch(requests)
        out = self.kernels.attention(q, self.k, self.v, batch, HEAD**-0.5, window)
        return list(out[batch.row_starts[1:] - 1])

    def _batch(self, requests: tuple[tuple[int, int, int, list[int]], ...]) -> tuple[PagedBatch, Tensor]:
        width = max(len(table) for *_, table in requests)
        positions = [torch.arange(context - rows, context) for _, context, rows, _ in requests]
        queries = [noise(160, HEADS, HEAD, seed=50 + name) for name, *_ in requests]
        starts = torch.tensor([0, *(rows for _, _, rows, _ in requests)]).cumsum(0)
        batch = PagedBatch(
            positions=torch.cat(positions),
            slots=torch.zeros(int(starts[-1]), dtype=torch.int64),
            row_starts=starts,
            context_lens=torch.tensor([context for _, context, _, _ in requests]),
            block_tables=torch.tensor([table + [-1] * (width - len(table)) for *_, table in requests]),
            page_size=self.page,
        )
        return batch, torch.cat([rows[at] for rows, at in zip(queries, positions, strict=True)])


def span(first: int, count: int) -> list[int]:
    return list(range(first, first + count))


A = (0, 30, 30, span(0, 4))  # Thirty tokens of prefill.
DECODED = (0, 30, 1, span(0, 4))


def beside(*others: tuple[int, int, int, list[int]]) -> Callable[[KernelSet], Two]:
    def case(kernels: KernelSet) -> Two:
        return Pool(kernels).attend(A)[0], Pool(kernels).attend(A, *others)[0]

    return case


def grouped(one: int, two: int) -> Callable[[KernelSet], Two]:
    def case(kernels: KernelSet) -> Two:
        return Pool(kernels).attend((0, 30, one, span(0, 4)))[0], Pool(kernels).attend((0, 30, two, span(0, 4)))[0]

    return case


def placed(one: list[int], two: list[int], **other: float) -> Callable[[KernelSet], Two]:
    def case(kernels: KernelSet) -> Two:
        return Pool(kernels).attend((0, 30, 1, one))[0], Pool(kernels, **other).attend((0, 30, 1, two))[0]

    return case


def beside_wider(kernels: KernelSet) -> Two:
    other = (1, 60, 1, span(4, 8))
    return Pool(kernels).attend(DECODED, other)[0], Pool(kernels, fill=float("nan")).attend(DECODED, other)[0]


def page_size(kernels: KernelSet) -> Two:
    return Pool(kernels).attend(DECODED)[0], Pool(kernels, page=16).attend((0, 30, 1, span(0, 2)))[0]


def hit(found: int) -> Callable[[KernelSet], Two]:
    """Rows that go on where the step before ended, and the same rows behind pages of a request that is gone."""

    def case(kernels: KernelSet) -> Two:
        pool, rest = Pool(kernels), (0, 30, 30 - found, span(0, 4))
        pool.attend((0, found, found, span(0, 3)))
        one = pool.attend(rest)[0]
        pool.attend((1, 8, 8, [9]))
        return one, pool.attend(rest)[0]

    return case


def hit_logprobs(kernels: KernelSet) -> Two:
    pool, logits = Pool(kernels), noise(1, 264)
    pool.attend((0, 24, 24, span(0, 3)))
    one = kernels.log_softmax(logits)[0].clone()
    pool.attend((1, 8, 8, [9]))
    kernels.log_softmax(noise(1, 264, seed=7))  # Somebody else's, left in the buffer.
    pool.attend((0, 30, 6, span(0, 4)))
    return one, kernels.log_softmax(logits)[0]


def written(kernels: KernelSet, before: list[int], slots: list[int], *, pages: int = 3, read: int = 0) -> Tensor:
    k_pages, v_pages = torch.zeros(2, pages, PAGE, KV_HEADS, HEAD)
    first, then = noise(len(before), KV_HEADS, HEAD, seed=8), noise(len(slots), KV_HEADS, HEAD, seed=9)
    for rows, at in ((first, before), (then, slots)):
        if at:
            kernels.write_kv(rows, rows * 2, k_pages, v_pages, torch.tensor(at))
    return k_pages.view(-1, KV_HEADS, HEAD)[read].clone()


def kv_scale(kernels: KernelSet) -> Two:
    rows, pages = noise(2, KV_HEADS, HEAD), torch.zeros(2, 1, PAGE, KV_HEADS, HEAD)
    kernels.write_kv(rows[:1], rows[:1], pages[0], pages[1], torch.tensor([0]))
    alone = pages[0, 0, 0].clone()
    rows[1] *= 30
    kernels.write_kv(rows, rows, pages[0], pages[1], torch.tensor([0, 1]))
    return alone, pages[0, 0, 0]


def padding_written(kernels: KernelSet) -> Two:
    """A row at the first slot of the second page, when somebody then writes the last slot of the first."""
    return written(kernels, [8], [16], read=8), written(kernels, [8], [7], read=8)


def late(kernels: KernelSet) -> Two:
    """A row at a slot that nobody held in the step before, and at one that somebody just gave up."""
    return written(kernels, [9], [3], read=3), written(kernels, [3], [3], read=3)


def tuned(kernels: KernelSet) -> Two:
    one = linear(kernels, (MINE, 0), (MINE, 0))[0]
    for _ in range(200):
        two = linear(kernels, (MINE, 0), (MINE, 0))[1]
    return one, two


def sampling(count: int, **columns: Tensor) -> SamplingRows:
    def whole(value: int) -> Tensor:
        return torch.full((count,), value, dtype=torch.int64)

    def real(value: float) -> Tensor:
        return torch.full((count,), value, dtype=torch.float64)

    rows = {
        "temperature": real(0.9),
        "top_k": whole(0),
        "top_p": real(1.0),
        "min_p": real(0.0),
        "seed": whole(5),
        "sample_index": whole(0),
        "position": torch.arange(count),
    }
    return SamplingRows(**{**rows, **columns}, vocab_limit=257)


def draws(kernels: KernelSet, count: int, mine: int, **columns: Tensor) -> Tensor:
    """Tokens of the first ``mine`` rows of ``count``."""
    return kernels.sample(noise(count, 264) * 2, sampling(count, **columns), want_processed=False).token_ids[:mine]


def alone(kernels: KernelSet) -> Two:
    one_by_one = [
        kernels.sample(
            noise(64, 264)[row : row + 1] * 2, sampling(1, position=torch.tensor([row])), want_processed=False
        ).token_ids
        for row in range(64)
    ]
    return torch.cat(one_by_one), draws(kernels, 64, 64)


def after_one(column: str, mine: float, theirs: float) -> Callable[[KernelSet], Two]:
    """31 rows whose ``column`` is ``mine``, beside a last one with the same, then with another."""

    def case(kernels: KernelSet) -> Two:
        kind = torch.float64 if column == "temperature" else torch.int64
        same = torch.full((32,), mine, dtype=kind)
        other = same.clone()
        other[-1] = theirs
        return draws(kernels, 32, 31, **{column: same}), draws(kernels, 32, 31, **{column: other})

    return case


def maximum(kernels: KernelSet) -> Two:
    rows = noise(2, 264)
    rows[1] *= 40
    return kernels.log_softmax(rows[:1])[0], kernels.log_softmax(rows)[0]


def rows(one: int, two: int, slot: int = 0) -> Callable[[KernelSet], Two]:
    return lambda kernels: linear(kernels, (company(one), 0), (company(two, slot), slot))


CASES: dict[str, Callable[[KernelSet], Two]] = {
    "one-row-kernel": rows(1, 2),
    "odd-batch-size": rows(4, 5),
    "split-k-by-rows": rows(2, 3),
    "all-reduce-by-size": rows(4, 5),
    "accumulator-by-rows": rows(3, 4),
    "padded-bucket": rows(8, 9),
    "remainder-rows": rows(5, 5, slot=4),
    "sum-per-thread": threads,
    "batch-scale": lambda kernels: linear(kernels, (company(3), 0), (company(3, scale=20), 0)),
    "experts-in-order-of-arrival": experts,
    "norm-block-by-tokens": norm(23, 24),
    "rows-per-program": norm(7, 8),
    "scalar-tail": gating,
    "one-position-for-all": rope,
    "splits-by-batch": beside((1, 9, 9, span(4, 2))),
    "tile-by-longest-query": beside((1, 65, 65, span(4, 9))),
    "tile-by-mean-query": beside((1, 120, 120, span(4, 15))),
    "split-by-table-width": beside((1, 104, 1, span(4, 13))),
    "chunk-border": grouped(30, 13),
    "decode-kernel": grouped(2, 1),
    "pages-in-pool-order": placed([0, 1, 2, 3], [2, 0, 3, 1]),
    "page-number-read": placed([0, 1, 2, 3], [1, 2, 3, 4]),
    "block-of-page-size": page_size,
    "last-page-read-whole": placed([0, 1, 2, 3], [0, 1, 2, 3], fill=float("nan")),
    "neighbours-nan": beside_wider,
    "stale-tail-in-maximum": placed([0, 1, 2, 3], [0, 1, 2, 3], fill=9.0),
    "kv-scale-of-step": kv_scale,
    "padding-rows-written": padding_written,
    "prefix-hit-path": hit(24),
    "one-block-prefix": hit(8),
    "logprobs-left-unset": hit_logprobs,
    "late-write": late,
    "tuned-while-serving": tuned,
    "noise-by-rank": alone,
    "shared-stream": lambda kernels: (draws(kernels, 32, 32), draws(kernels, 32, 32)),
    "seeds-dropped": after_one("seed", 5, 6),
    "greedy-beside-sampled": after_one("temperature", 0.0, 0.9),
    "mask-of-the-batch": after_one("top_k", 0, 2),
    "maximum-of-the-batch": maximum,
}


@pytest.fixture(scope="module")
def sound() -> KernelSet:
    return kernel_set("invariant")


@pytest.fixture(autouse=True)
def _one_thread():
    with intraop_threads(1):
        yield


def bits(pair: Two) -> list[Tensor]:
    return [side.contiguous().view(torch.int32) if side.is_floating_point() else side for side in pair]


def test_every_mutant_has_a_case():
    assert set(CASES) == set(MUTANTS)


@pytest.mark.parametrize("name", CASES)
def test_a_mutant_fails_where_the_sound_kernels_hold(name, sound):
    assert torch.equal(*bits(CASES[name](sound)))
    assert not torch.equal(*bits(CASES[name](MUTANTS[name](sound))))


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_a_mutant_says_what_it_is(mutant, sound):
    fault = mutant.fault
    assert fault.operator in OPERATORS
    assert fault.axes
    assert all(re.fullmatch(r"[\w.-]+#\d+", bug) for bug in fault.models)
    assert mutant.__doc__.endswith(".")
    made = mutant(sound)
    assert (made.name, made.backend, made.fuse(None)) == ("mutant", fault.name, None)
    assert made.identity() != sound.identity()


def test_at_least_25_mutants_are_modelled_on_public_reports():
    assert sum(bool(mutant.fault.models) for mutant in MUTANTS.values()) >= 25


def test_names_are_taken_in_the_order_of_the_list_each_once():
    asked = mutants_named("decode-kernel, one-row-kernel,decode-kernel")
    assert [mutant.fault.name for mutant in asked] == ["one-row-kernel", "decode-kernel"]
    assert mutants_named(None) == tuple(MUTANTS.values())
    with pytest.raises(UsageError, match="unknown mutant 'decode' in --only"):
        mutants_named("decode")


def test_a_base_class_is_no_mutant():
    assert not any(mutant is FaultyKernels for mutant in MUTANTS.values())
