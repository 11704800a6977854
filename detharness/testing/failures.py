"""How an assertion of this room fails. No torch: the pytest plugin reads these."""

from __future__ import annotations

from dataclasses import dataclass


class NothingComparedError(AssertionError):
    """The assertion compared nothing, or nothing that could have differed: its silence would prove nothing."""


@dataclass(frozen=True)
class Difference:
    """The first element in which two output rows differ.

    output: which of a function's several outputs, from 0. element: its index in a row of ``shape``. left, right: the
    values, floats as hexadecimal. ulps: how many values of the dtype lie between them. differing: how many elements do.
    """

    output: int | None
    element: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: str
    is_float: bool
    left: str
    right: str
    ulps: int
    differing: int


_WORDS = {
    "rows": "the number of rows",
    "slot": "the row's slot",
    "neighbours": "what the other rows hold",
    "layout": "where the input stands in memory",
    "threads": "the number of threads",
    "schedule": "the schedule",
    "run to run": "nothing at all: the same call gave both",
}


class BitsMovedError(AssertionError):
    """Two results that must be equal in every bit are not.

    axes: the fewest that move them: "rows", "slot", "neighbours", "layout", "threads"; "schedule" for a plan; "run to
    run" where the same call gave both. rows: of the call on the right. row: which row moved, counted over the rows
    given. difference: the first element. reproduction: code that shows it again, with torch alone.
    """

    def __init__(
        self,
        *,
        subject: str,
        axes: tuple[str, ...],
        rows: int,
        row: int,
        left: str,
        right: str,
        difference: Difference,
        reproduction: str,
    ) -> None:
        self.subject = subject
        self.axes = axes
        self.rows = rows
        self.row = row
        self.left = left
        self.right = right
        self.difference = difference
        self.reproduction = reproduction
        super().__init__(self._message())

    def _message(self) -> str:
        found = self.difference
        where = "" if found.output is None else f" in output {found.output}"
        lines = [
            f"{self.subject}: a row's bits change with {' and '.join(_WORDS[axis] for axis in self.axes)}",
            "",
            f"rows           {self.rows}",
            f"row            {self.row}",
            f"axis           {', '.join(self.axes)}",
            f"first element  {list(found.element)} of {list(found.shape)}{where}, {found.dtype}; "
            f"{found.differing} differ",
            f"left           {found.left}  ({self.left})",
            f"right          {found.right}  ({self.right})",
            f"distance       {found.ulps} ULP",
            "",
            "reproduce:",
            "",
            self.reproduction,
        ]
        return "\n".join(lines)
