"""``assert_accurate``: a bound relative to a reference of the same dtype, and never without a reason."""

from __future__ import annotations

import pytest
import torch

from detharness.errors import UsageError
from detharness.testing import NothingComparedError, assert_accurate, two_sided

EXACT = torch.randn(50, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
REASON = "both sides round once"


def check(values, *, reference=None, exact=EXACT, times=2.0, reason=REASON):
    reference = EXACT.bfloat16() if reference is None else reference
    assert_accurate(values=values, reference=reference, exact=exact, times=times, reason=reason)


def test_twice_the_error_passes_and_more_fails():
    reference = EXACT.float() + 0.125
    caught = two_sided(
        sound=EXACT.float() - 0.249,
        faulty=EXACT.float() + 0.251,
        check=lambda values: check(values, reference=reference),
    )
    assert str(caught) == (
        "the root mean square of the error is 0.251, more than 2 times 0.125 of the reference (both sides round once)"
    )


def test_one_bad_element_fails_by_the_maximum():
    values = EXACT.float() + 0.125
    values[7, 3] += 0.25  # 3 times the maximum, and 1.01 times the root mean square.
    with pytest.raises(AssertionError, match=r"maximum of the error is 0\.375"):
        check(values, reference=EXACT.float() + 0.125)


def test_an_exact_reference_allows_no_error():
    exact = EXACT.float().double()
    check(EXACT.float(), reference=EXACT.float(), exact=exact)
    with pytest.raises(AssertionError):
        check(EXACT.float().nextafter(torch.tensor(9.0)), reference=EXACT.float(), exact=exact)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_what_is_not_finite_bounds_nothing(bad):
    broken = torch.where(EXACT.eq(EXACT[0, 0]), bad, EXACT)
    for arguments in (
        {"values": broken.bfloat16()},
        {"values": EXACT.bfloat16(), "reference": broken.bfloat16()},
        {"values": EXACT.bfloat16(), "exact": broken},
    ):
        with pytest.raises(AssertionError, match="finite"):
            check(**arguments)


def test_comparing_nothing_fails():
    with pytest.raises(NothingComparedError):
        check(torch.empty(0), reference=torch.empty(0), exact=torch.empty(0, dtype=torch.float64))


@pytest.mark.parametrize(
    "arguments",
    [
        {"reason": ""},
        {"reason": "  "},
        {"times": 0.5},
        {"times": float("nan")},
        {"exact": EXACT.float()},
        {"reference": EXACT.float()},
        {"exact": EXACT[:1]},
        {"values": EXACT.long(), "reference": EXACT.long()},
    ],
)
def test_a_bound_that_says_nothing_is_refused(arguments):
    with pytest.raises(UsageError):
        check(**{"values": EXACT.bfloat16(), **arguments})


def test_a_reason_cannot_be_left_out():
    with pytest.raises(TypeError, match="reason"):
        assert_accurate(values=EXACT, reference=EXACT, exact=EXACT, times=2)
