"""Rows as bits, and the first element in which two of them differ. Any dtype, any device."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from detharness.errors import UsageError
from detharness.testing.failures import Difference, NothingComparedError


@dataclass(frozen=True)
class Rows:
    """The output rows of a call, copied to the CPU as bytes: unlike ==, -0 is not 0 and NaN is itself.

    raw: [M, bytes of a row] uint8 per output. kinds: shape and dtype of a row, per output. single: the function
    returned a tensor, not a sequence.
    """

    raw: tuple[Tensor, ...]
    kinds: tuple[tuple[tuple[int, ...], torch.dtype], ...]
    single: bool

    @classmethod
    def of(cls, result: Any, count: int) -> Rows:
        """The rows of what a function returned: a tensor [count, ...], or a sequence of such."""
        outputs = _outputs(result)
        for output in outputs:
            if output.dim() == 0 or len(output) != count:
                raise UsageError(f"the function must return a row per row: {list(output.shape)} for {count} rows")
        if not sum(output.numel() for output in outputs):
            raise NothingComparedError("the function returned no element")
        kinds = tuple((tuple(output.shape[1:]), output.dtype) for output in outputs)
        return cls(tuple(_bytes(output) for output in outputs), kinds, isinstance(result, Tensor))

    @classmethod
    def whole(cls, result: Any) -> Rows:
        """Every output as one row."""
        return cls.of(result[None] if isinstance(result, Tensor) else [part[None] for part in _outputs(result)], 1)

    def take(self, slots: Sequence[int]) -> Rows:
        """The rows in ``slots``."""
        index = torch.tensor(slots)
        return Rows(tuple(raw[index] for raw in self.raw), self.kinds, self.single)

    def put(self, slot: int, row: Rows) -> None:
        """Overwrite the row in ``slot``."""
        for raw, held in zip(self.raw, row.raw, strict=True):
            raw[slot] = held[0]

    def space(self, count: int) -> Rows:
        """``count`` rows of the same kind, to be put."""
        return Rows(tuple(raw.new_empty(count, raw.shape[1]) for raw in self.raw), self.kinds, self.single)

    def first_unequal(self, other: Rows) -> int | None:
        """The first slot in which a bit differs."""
        if self.kinds != other.kinds:
            raise UsageError(f"the function returns rows of another shape or dtype: {self.kinds} and {other.kinds}")
        pairs = zip(self.raw, other.raw, strict=True)
        unequal = torch.stack([(one != another).any(1) for one, another in pairs]).any(0)
        return int(unequal.nonzero()[0]) if unequal.any() else None

    def is_constant(self) -> bool:
        """Whether every element of each output is the same; one element alone is not."""
        elements = [raw.reshape(-1, dtype.itemsize) for raw, (_, dtype) in zip(self.raw, self.kinds, strict=True)]
        return all(len(held) > 1 and torch.equal(held, held[:1].expand_as(held)) for held in elements)


def _outputs(result: Any) -> Sequence[Tensor]:
    outputs = [result] if isinstance(result, Tensor) else result
    if not isinstance(outputs, Sequence) or not all(isinstance(output, Tensor) for output in outputs):
        raise UsageError(f"the function must return a tensor or a sequence of tensors, not {type(result).__name__}")
    return outputs


def _bytes(x: Tensor) -> Tensor:
    return x.detach().reshape(len(x), prod(x.shape[1:])).contiguous().view(torch.uint8).to("cpu", copy=True)


def first_difference(left: Rows, right: Rows) -> Difference | None:
    """The first element of the first row in which the two differ; None where every bit is equal."""
    row = left.first_unequal(right)
    if row is None:
        return None
    output = next(index for index, raw in enumerate(left.raw) if not torch.equal(raw[row], right.raw[index][row]))
    shape, dtype = left.kinds[output]
    one, other = (rows.raw[output][row].view(dtype) for rows in (left, right))
    size = one.element_size()
    unequal = (left.raw[output][row] != right.raw[output][row]).view(-1, size).any(1)
    first = int(unequal.nonzero()[0])
    return Difference(
        output=None if left.single else output,
        element=tuple(first // prod(shape[axis + 1 :]) % length for axis, length in enumerate(shape)),
        shape=shape,
        dtype=str(dtype).removeprefix("torch."),
        is_float=dtype.is_floating_point,
        left=_written(one[first]),
        right=_written(other[first]),
        ulps=ulp_distance(one[first], other[first]),
        differing=int(unequal.sum()),
    )


def ulp_distance(left: Tensor, right: Tensor) -> int:
    """How many values of their dtype lie between two scalars, by bit patterns.

    Patterns are mapped to integers in the order of the values: +0 and -0 are one apart, and NaN patterns stand beyond
    the infinities. Integers are as far apart as they are; complex numbers as far as the farther of their parts.
    """
    if left.is_complex():
        parts = zip(torch.view_as_real(left), torch.view_as_real(right), strict=True)
        return max(ulp_distance(one, other) for one, other in parts)
    if not left.is_floating_point():
        return abs(int(left.item()) - int(right.item()))
    return abs(_ordered(left) - _ordered(right))


def _ordered(scalar: Tensor) -> int:
    pattern = int.from_bytes(bytes(_bytes(scalar.reshape(1))[0].tolist()), sys.byteorder)
    sign = 1 << (8 * scalar.element_size() - 1)
    # A negative float's pattern grows away from zero: -1 - magnitude puts it below +0, -0 at -1.
    return pattern if pattern < sign else -1 - (pattern - sign)


def _written(scalar: Tensor) -> str:
    value = scalar.item()
    return value.hex() if isinstance(value, float) else repr(value)
