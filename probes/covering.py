"""Pairwise covering arrays: few rows in which every pair of levels of every two factors stands together.

Most faults need one factor or two acting together (Kuhn, Wallace and Gallo, "Software fault interactions and
implications for software testing", IEEE TSE 30, 2004), so pairs give most of the yield of the full product. The
construction is greedy, in the manner of AETG (Cohen et al., IEEE TSE 23, 1997), without its random candidates:
rows come out in one fixed order, the richest first, so a run cut short has covered the most pairs it could.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from itertools import combinations

Row = dict[str, Hashable]
_Pair = tuple[str, Hashable, str, Hashable]


def covering_rows(factors: Mapping[str, Sequence[Hashable]]) -> list[Row]:
    """Rows (one level per factor) that cover all pairs; ties go to the factor and level named first."""
    if len(factors) < 2:
        return [{name: level} for name, levels in factors.items() for level in levels]
    missing = dict.fromkeys(_all_pairs(factors))
    rows = []
    while missing:
        row = _next_row(factors, missing)
        for pair in _pairs(row, list(factors)):
            missing.pop(pair, None)
        rows.append(row)
    return rows


def _next_row(factors: Mapping[str, Sequence[Hashable]], missing: Mapping[_Pair, None]) -> Row:
    """Start from the first missing pair, so that every row covers something; add the level that gains most."""
    first, first_level, second, second_level = next(iter(missing))
    row: Row = {first: first_level, second: second_level}
    order = list(factors)
    place = {name: index for index, name in enumerate(order)}
    for name in order:
        if name in row:
            continue

        def gain(level: Hashable, name: str = name) -> int:
            return sum(_pair(place, name, level, other, row[other]) in missing for other in row)

        row[name] = max(factors[name], key=gain)
    return {name: row[name] for name in order}


def pairs_covered(rows: Sequence[Row], factors: Mapping[str, Sequence[Hashable]]) -> tuple[int, int]:
    """How many pairs of levels the rows cover, and how many there are."""
    covered = {pair for row in rows for pair in _pairs(row, list(factors))}
    return len(covered), len(_all_pairs(factors))


def _all_pairs(factors: Mapping[str, Sequence[Hashable]]) -> list[_Pair]:
    return [
        (first, left, second, right)
        for first, second in combinations(factors, 2)
        for left in factors[first]
        for right in factors[second]
    ]


def _pairs(row: Row, order: Sequence[str]) -> list[_Pair]:
    return [(first, row[first], second, row[second]) for first, second in combinations(order, 2)]


def _pair(place: Mapping[str, int], first: str, left: Hashable, second: str, right: Hashable) -> _Pair:
    if place[first] < place[second]:
        return first, left, second, right
    return second, right, first, left
