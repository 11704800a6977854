"""Rolling hashes of every operator's output rows: a whole play in 8 bytes per row and operator."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from detharness.probes.causes.lineage import RowKey
from detharness.targets.protocol import Observation

_SIZE = 8  # Two different rows share a hash once in 2**64.


@dataclass(frozen=True)
class Site:
    """A place in the model where rows come out: an operator of a layer (-1: outside the layers), ``width`` elements."""

    layer: int
    operator: str
    width: int


class Trails:
    """Takes the observations of one play and keeps, per row, the hash after each operator, chained from the first.

    Two rows whose last hashes agree agree everywhere; the first hash that differs names the operator.
    """

    def __init__(self) -> None:
        self.sites: list[Site] = []
        self._hashes: dict[RowKey, bytearray] = {}

    def take(self, seen: Observation) -> None:
        """Chain one output row to its trail."""
        key = RowKey(seen.step, seen.position, seen.request_id, seen.sample_index)
        trail = self._hashes.setdefault(key, bytearray())
        index = len(trail) // _SIZE
        if index == len(self.sites):
            self.sites.append(Site(seen.layer, seen.operator, seen.bits.size))
        trail += hashlib.blake2b(bytes(trail[-_SIZE:]) + seen.bits.tobytes(), digest_size=_SIZE).digest()

    def __contains__(self, row: RowKey) -> bool:
        return row in self._hashes

    def parts_at(self, row: RowKey, other: Trails, other_row: RowKey) -> int | None:
        """Index in ``sites`` of the first operator whose output differs; None where all that both computed is equal.

        A row whose logits nobody asked for ends one operator earlier.
        """
        mine, theirs = self._hashes[row], other._hashes[other_row]
        length = min(len(mine), len(theirs))
        if mine[length - _SIZE : length] == theirs[length - _SIZE : length]:
            return None
        return next(at // _SIZE for at in range(0, length, _SIZE) if mine[at : at + _SIZE] != theirs[at : at + _SIZE])
