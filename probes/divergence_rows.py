"""A row for each place where a reply left its reference, and how narrow the choice there was among all of the run's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Row = Mapping[str, Any]


class Margins:
    """The top-2 margins of an arm's replies, sorted: where one of them stands among all."""

    def __init__(self, replies: Iterable[Sequence[float | None]]) -> None:
        known = [np.array(margins, dtype=np.float64) for margins in replies]  # None becomes NaN.
        values = np.concatenate(known) if known else np.empty(0)
        self._sorted: NDArray[np.float64] = np.sort(values[np.isfinite(values)])

    def rank(self, margin: float) -> list[int]:
        """[rank of ``margin`` counted from the smallest, number of margins]; equal ones share the lowest rank."""
        return [int(np.searchsorted(self._sorted, margin)) + 1, len(self._sorted)]

    @property
    def median(self) -> float | None:
        """Of all of them; None where there is none."""
        return float(np.median(self._sorted)) if len(self._sorted) else None


def divergence_rows(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Divergences of one arm's trials from the reference of their axis, each distinct one once with its count.

    ``rows``: the arm's records, solo replies included: their margins are those of the run. Indices are relative to
    the solo reply, positions absolute; ``axis`` is None where the trial blames none. Drift is the gap between the
    chosen tokens' logprobs before the tokens part.
    """
    trials = [row for row in rows if row["kind"] == "trial" and row["comparison"]["first_token"] is not None]
    if not trials:
        return []
    margins = Margins(row["margins"] for row in rows if row["kind"] in ("solo", "trial"))
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in trials:
        made = _row(row, margins)
        key = tuple(str(made[name]) for name in made)
        found.setdefault(key, {**made, "count": 0})["count"] += 1
    return list(found.values())


def _row(row: Row, margins: Margins) -> dict[str, Any]:
    comparison = row["comparison"]
    index = comparison["first_token"] + row["offset"]
    blamed = row["exercised"] and not row["confounded"]
    margin = comparison["margin"]
    return {
        "prompt": row["prompt"],
        "axis": row["axis"] if blamed else None,
        "level": row["level"],
        "prompt_tokens": comparison["position"] - index,
        "index": index,
        "position": comparison["position"],
        "method": "token ids",
        "interval": [index, index],
        "byte_offset": None,
        "margin": margin,
        "margin_rank": None if margin is None else margins.rank(margin),
        "median_margin": margins.median,
        "drift_median": comparison["median_logprob_gap"],
        "drift_max": comparison["max_logprob_gap"] if comparison["first_token"] else None,
        "divergence_class": comparison["divergence_class"],
        "forced": None,
        "context": row["context"],
    }
