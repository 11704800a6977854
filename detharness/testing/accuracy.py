"""Are results close enough to the exact ones? The one place for a tolerance, and it needs a reason."""

from __future__ import annotations

import torch
from torch import Tensor

from detharness.errors import UsageError
from detharness.testing.failures import NothingComparedError


def assert_accurate(*, values: Tensor, reference: Tensor, exact: Tensor, times: float, reason: str) -> None:
    """Fail unless the error of ``values`` is at most ``times`` that of ``reference``.

    Errors are taken against ``exact``, in fp64, as root mean square and as maximum; both must hold. ``reference`` comes
    from a trusted kernel in the dtype of ``values``, so the bound follows the dtype, the length and the data of the
    reduction, which a fixed tolerance does not. ``reason`` says why this many times is right; the failure quotes it.
    """
    __tracebackhide__ = True
    if not reason.strip() or not times >= 1:
        raise UsageError(f"a tolerance is at least 1 and has a reason: times={times}, reason={reason!r}")
    if exact.dtype != torch.float64 or values.dtype != reference.dtype or not values.is_floating_point():
        raise UsageError(
            "values and reference must be of one floating-point dtype, and exact float64: "
            f"found {values.dtype}, {reference.dtype} and {exact.dtype}"
        )
    if not values.shape == reference.shape == exact.shape:
        raise UsageError(f"shapes differ: {list(values.shape)}, {list(reference.shape)} and {list(exact.shape)}")
    if not values.numel():
        raise NothingComparedError("there is no element to compare")
    if not all(bool(torch.isfinite(side).all()) for side in (values, reference, exact)):
        raise AssertionError("values, reference and exact must be finite: an error of infinity or NaN bounds nothing")
    mine, theirs = ((side.double() - exact.to(side.device)).abs() for side in (values, reference))
    for name, error, allowed in (
        ("root mean square", mine.square().mean().sqrt().item(), theirs.square().mean().sqrt().item()),
        ("maximum", mine.max().item(), theirs.max().item()),
    ):
        if error > times * allowed:
            raise AssertionError(
                f"the {name} of the error is {error:.3g}, more than {times:g} times {allowed:.3g} of the reference "
                f"({reason})"
            )
