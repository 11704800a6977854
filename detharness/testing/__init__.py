"""Row purity for other people's kernels: assertions, Hypothesis strategies and a pytest plugin.

May import: the common rooms and ``detharness.kernels.threads``. Nothing of ours imports it but tests. Names load what
they need when they are first used: importing this package, or the plugin, loads neither torch nor Hypothesis.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from detharness.testing.accuracy import assert_accurate
    from detharness.testing.batches import Batch, every_batch, row_counts
    from detharness.testing.failures import BitsMovedError, NothingComparedError
    from detharness.testing.inputs import Normal
    from detharness.testing.plans import assert_plan_holds
    from detharness.testing.purity import assert_row_pure
    from detharness.testing.sides import two_sided

__all__ = [
    "Batch",
    "BitsMovedError",
    "Normal",
    "NothingComparedError",
    "assert_accurate",
    "assert_plan_holds",
    "assert_row_pure",
    "every_batch",
    "row_counts",
    "strategies",
    "two_sided",
]

_HOMES = {
    "Batch": "batches",
    "BitsMovedError": "failures",
    "Normal": "inputs",
    "NothingComparedError": "failures",
    "assert_accurate": "accuracy",
    "assert_plan_holds": "plans",
    "assert_row_pure": "purity",
    "every_batch": "batches",
    "row_counts": "batches",
    "two_sided": "sides",
}


def __getattr__(name: str) -> Any:
    if name == "strategies":
        return import_module(f"{__name__}.strategies")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
