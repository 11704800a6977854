"""The block pool: ownership, hash chains, eviction order, placement. Integers only."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detharness.engine.blocks import CHAIN_ROOT, BlockPool, page_key
from detharness.engine.params import PagePlacement


def pool(blocks: int = 4, size: int = 2, placement: PagePlacement = PagePlacement.ASCENDING):
    released: list[int] = []
    return BlockPool(blocks, size, placement, 7, released.append), released


def chain(tokens: list[int], size: int = 2) -> list[bytes]:
    keys, parent = [], CHAIN_ROOT
    for start in range(0, len(tokens) - len(tokens) % size, size):
        parent = page_key(parent, tokens[start : start + size])
        keys.append(parent)
    return keys


def test_pages_are_handed_out_ascending_and_reused_lowest_first():
    blocks, released = pool()
    pages = [blocks.allocate(0) for _ in range(4)]
    assert pages == [0, 1, 2, 3]
    assert blocks.allocate(0) is None
    blocks.release([2, 0], 1)
    assert released == [2, 0]
    assert blocks.allocate(1) == 0


def test_permuted_placement_differs_and_is_repeatable():
    first, _ = pool(16, placement=PagePlacement.PERMUTED)
    again, _ = pool(16, placement=PagePlacement.PERMUTED)
    order = [first.allocate(0) for _ in range(16)]
    assert sorted(order) == list(range(16))
    assert order != sorted(order)
    assert order == [again.allocate(0) for _ in range(16)]


def test_a_cached_prefix_is_found_and_never_covers_the_last_token():
    blocks, released = pool()
    tokens = [5, 6, 7, 8]
    owned = [blocks.allocate(0), blocks.allocate(0)]
    for page, key in zip(owned, chain(tokens), strict=True):
        blocks.register(page, key)
    blocks.release(owned, 0)
    assert released == []
    assert blocks.available == 4
    assert blocks.match([5, 6, 7, 8], 1) == [0]
    assert blocks.match([5, 6, 7, 8, 9], 1) == [0, 1]
    assert blocks.match([5, 9, 7, 8, 9], 1) == []
    assert blocks.match([7, 8, 1], 1) == [], "a page is keyed by its whole prefix, not by its own tokens"


def test_eviction_is_least_recently_used_then_highest_page():
    blocks, released = pool(3)
    owned = [blocks.allocate(0) for _ in range(3)]
    for page, first in zip(owned, (1, 2, 3), strict=True):
        blocks.register(page, page_key(CHAIN_ROOT, [first, first]))
    blocks.release([0, 1, 2], 1)
    blocks.release(blocks.match([1, 1, 0], 5), 5)
    assert [blocks.allocate(6) for _ in range(3)] == [2, 1, 0]
    assert released == [2, 1, 0]
    assert blocks.match([1, 1, 0], 7) == []


def test_one_eviction_costs_a_chain_its_tail_not_its_head():
    blocks, released = pool(3)
    tokens = [1, 2, 3, 4, 5, 6]
    owned = [blocks.allocate(0) for _ in range(3)]
    for page, key in zip(owned, chain(tokens), strict=True):
        blocks.register(page, key)
    blocks.release(owned, 1)
    blocks.allocate(2)
    assert released == [2]
    assert blocks.match([*tokens, 7], 3) == [0, 1]


def test_shared_pages_are_not_evicted_while_owned():
    blocks, _ = pool(1)
    page = blocks.allocate(0)
    blocks.register(page, page_key(CHAIN_ROOT, [1, 1]))
    shared = blocks.match([1, 1, 2], 0)
    blocks.release([page], 0)
    assert blocks.allocate(1) is None
    blocks.release(shared, 1)
    assert blocks.allocate(2) == page


def test_releasing_a_page_nobody_owns_is_a_bug_and_says_so():
    blocks, _ = pool()
    with pytest.raises(AssertionError, match="without an owner"):
        blocks.release([0], 0)


@given(st.lists(st.tuples(st.sampled_from(["take", "free", "share"]), st.integers(0, 3)), max_size=60))
def test_every_page_is_exactly_one_of_unused_owned_or_idle(moves):
    blocks, _ = pool(5)
    owned: list[int] = []
    for step, (move, token) in enumerate(moves):
        if move == "take":
            page = blocks.allocate(step)
            assert (page is None) == (len(set(owned)) == 5)
            if page is not None:
                assert page not in owned
                owned.append(page)
                blocks.register(page, page_key(CHAIN_ROOT, [token, token]))
        elif move == "free" and owned:
            blocks.release([owned.pop(token % len(owned))], step)
        elif move == "share":
            owned.extend(blocks.match([token, token, 0], step))
        assert blocks.available == 5 - len(set(owned))
