"""The compiled library's functions, typed for ctypes."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from detharness.kernels.cpu.build import BuildError

_POINTER = ctypes.c_void_p
_INT = ctypes.c_int64
_FLOAT = ctypes.c_float


class Library:
    """One attribute per function of the C ABI; the sources say what each argument is. Calls release the GIL."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._library = ctypes.CDLL(str(path))
        except OSError as error:
            raise BuildError(f"the compiled kernels {path} cannot be loaded: {error}") from error
        self.row_tile = self._function("dh_row_tile", [], _INT)
        self.row_block = self._function("dh_row_block", [_INT], _INT)
        self.packed_size = self._function("dh_packed_size", [_INT] * 5, _INT)
        self.pack = self._function("dh_pack", [_POINTER] * 2 + [_INT] * 6)
        self.linear = self._function(
            "dh_linear", [_POINTER, _POINTER, _INT, _INT, _POINTER, _INT, _POINTER] + [_INT] * 6
        )
        self.embedding = self._function("dh_embedding", [_POINTER, _INT, _POINTER, _INT, _POINTER] + [_INT] * 5)
        self.rms_norm = self._function("dh_rms_norm", [_POINTER] * 5 + [_INT] * 8 + [_FLOAT, _INT])
        self.rope = self._function("dh_rope", [_POINTER, _POINTER, _INT, _POINTER, _POINTER] + [_INT] * 5)
        self.write_kv = self._function("dh_write_kv", [_POINTER] * 3 + [_INT] * 3)
        self.silu_and_mul = self._function("dh_silu_and_mul", [_POINTER] * 2 + [_INT] * 5)
        self.log_softmax = self._function("dh_log_softmax", [_POINTER] * 2 + [_INT] * 6)
        self.attention = self._function("dh_attention", [_POINTER] * 7 + [_INT] * 7 + [_FLOAT] + [_INT] * 4)
        self.gumbel = self._function("dh_gumbel", [_POINTER] + [_INT] * 4)
        self.sample = self._function("dh_sample", [_POINTER] * 3 + [_INT] * 4 + [_POINTER] * 7 + [_INT] * 3)
        self.forward_workspace = self._function("dh_forward_workspace", [_POINTER] * 2 + [_INT] * 2, _INT)
        self.forward = self._function("dh_forward", [_POINTER] * 7)

    def _function(self, name: str, arguments: Sequence[Any], result: Any = None) -> Callable[..., int]:
        function: Callable[..., int] = getattr(self._library, name)
        function.argtypes = list(arguments)  # type: ignore[attr-defined]
        function.restype = result  # type: ignore[attr-defined]
        return function


@cache
def open_library(path: Path) -> Library:
    """Load ``path`` once per process."""
    return Library(path)
