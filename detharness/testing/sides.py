"""A check that cannot fail proves nothing: hold it against something that must fail it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from detharness.testing.failures import NothingComparedError

Subject = TypeVar("Subject")


def two_sided(*, sound: Subject, faulty: Subject, check: Callable[[Subject], object]) -> AssertionError:
    """Fail unless ``check`` passes on ``sound`` and fails on ``faulty``; returns that failure.

    To fail is to raise an AssertionError. One that compared nothing (NothingComparedError) has caught nothing, and any
    other exception is a fault of the check or of the subject: both pass through.
    """
    check(sound)
    try:
        check(faulty)
    except NothingComparedError:
        raise
    except AssertionError as caught:
        return caught
    raise AssertionError("the check passes on the faulty side too, so that it passes on the sound one proves nothing")
