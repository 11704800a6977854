"""How far stated confidences lie from what came true."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

BIN_SIZE = 100


def rms_calibration_error(answers: Sequence[tuple[int, bool]], bin_size: int = BIN_SIZE) -> float:
    """Root mean square of (mean confidence - share correct) over bins, weighted by their answers; from 0 to 1.

    answers: (confidence in percent, correct). Bins hold at least ``bin_size`` answers of neighbouring confidence
    (D. Hendrycks et al., "Deep anomaly detection with outlier exposure", 2019: adaptive bins, RMS). All bins count,
    the last one takes what is left over, and equal confidences share a bin, so the order of the answers cannot
    matter. ValueError below ``bin_size`` answers.
    """
    if len(answers) < bin_size:
        raise ValueError(f"a calibration error needs at least {bin_size} answers, got {len(answers)}")
    ordered = sorted(answers)
    starts = [0]
    for index in range(1, len(ordered)):
        if index - starts[-1] >= bin_size and ordered[index][0] != ordered[index - 1][0]:
            starts.append(index)
    if len(ordered) - starts[-1] < bin_size and len(starts) > 1:
        starts.pop()
    bins = [ordered[start:end] for start, end in zip(starts, [*starts[1:], len(ordered)], strict=True)]
    return _root_mean_square(bins, len(ordered))


def drop_last_calibration_error(answers: Sequence[tuple[int, bool]], bin_size: int = BIN_SIZE) -> float:
    """The figure published for Humanity's Last Exam, for comparison only: its formula leaves the last bin out.

    Bins of ``bin_size`` by ascending confidence, in the order given among equal ones; the last bin takes the rest and
    is not added, while all answers count in the weights. So it is too small, and 0 whatever the answers below twice
    ``bin_size``: ValueError there.
    """
    if len(answers) < 2 * bin_size:
        raise ValueError(f"the formula drops all it has below {2 * bin_size} answers, got {len(answers)}")
    ordered = sorted(answers, key=lambda answer: answer[0])
    kept = len(ordered) // bin_size - 1
    bins = [ordered[index * bin_size : (index + 1) * bin_size] for index in range(kept)]
    return _root_mean_square(bins, len(ordered))


def _root_mean_square(bins: Sequence[Sequence[tuple[int, bool]]], answers: int) -> float:
    total = Fraction(0)
    for content in bins:
        gap = Fraction(sum(confidence for confidence, _ in content), 100) - sum(correct for _, correct in content)
        total += gap**2 / len(content)
    return math.sqrt(total / answers)
