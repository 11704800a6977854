"""Code that shows a difference again: it needs torch and the function under test, and nothing of ours."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from detharness.testing.failures import Difference
from detharness.testing.inputs import Normal, normal, seed_of

_EMBEDDED = 64  # Elements of a given tensor that are written out; a longer one is the reader's to fill in.


class Script:
    """Lines of code under their imports and the sources of the functions they call."""

    def __init__(self) -> None:
        self._imports = ["import torch", "from torch import Tensor"]
        self._helpers: list[Callable[..., Any]] = []
        self._lines: list[str] = []

    def helper(self, function: Callable[..., Any]) -> None:
        """Put the source of ``function`` at the top, once."""
        if function not in self._helpers:
            self._helpers.append(function)

    def line(self, text: str = "") -> None:
        """Add a line."""
        self._lines.append(text)

    def function(self, name: str, function: Callable[..., Any]) -> None:
        """Import ``function`` as ``name``, or leave it to the reader."""
        found = home(function)
        if found is None:
            self.line(f"{name} = ...  # yours: {described(function)}")
        else:
            self._import(f"from {found[0]} import {found[1]} as {name}")

    def value(self, name: str, value: object) -> None:
        """``name = value``."""
        code = self._code(value)
        self.line(f"{name} = {code}" if code else f"{name} = ...  # yours: {described(value)}")

    def arguments(self, name: str, given: Mapping[str, object], *, seed: int, first: int, rows: int | None) -> None:
        """A dict of arguments, numbered from ``first``; what cannot be written as code is left to the reader."""
        self.line(f"{name} = {{")
        for index, (key, value) in enumerate(given.items()):
            if isinstance(value, Normal):
                self.helper(normal)
                code: str | None = value.code(seed=seed_of(seed, first + index), rows=rows)
            else:
                code = self._code(value)
            self.line(f"    {key!r}: {code}," if code else f"    {key!r}: ...,  # yours: {described(value)}")
        self.line("}")

    def comparison(self, left: str, right: str, found: Difference) -> None:
        """Show the element, and compare the rows ``left`` and ``right`` ("[slot]") of the results of these names."""
        index = 0
        for at, length in zip(found.element, found.shape, strict=True):
            index = index * length + at
        shown = ".hex()" if found.is_float else ""
        part = "" if found.output is None else f"[{found.output}]"
        self.line(f"left = left{part}{left}.detach().flatten()")
        self.line(f"right = right{part}{right}.detach().flatten()")
        self.line(f"print(left[{index}].item(){shown}, right[{index}].item(){shown})")
        self.line("assert torch.equal(left.view(torch.uint8), right.view(torch.uint8))")

    def text(self) -> str:
        """The whole script."""
        imports = sorted(self._imports, key=lambda line: (not line.startswith("import"), line))
        sources = [inspect.getsource(function).rstrip() for function in self._helpers]
        return "\n\n\n".join(["\n".join(imports), *sources, "\n".join(self._lines)])

    def _import(self, statement: str) -> None:
        if statement not in self._imports:
            self._imports.append(statement)

    def _code(self, value: object) -> str | None:
        """An expression that gives ``value`` again, or None."""
        if value is None or isinstance(value, bool | int | str | bytes | torch.dtype):
            return repr(value)
        if isinstance(value, float):
            return f"float({str(value)!r})"
        if isinstance(value, torch.device):
            return f"torch.device({str(value)!r})"
        if isinstance(value, Tensor):
            return self._tensor(value)
        if isinstance(value, tuple | list):
            parts = [self._code(part) for part in value]
            if None in parts:
                return None
            inner = "".join(f"{part}, " for part in parts)
            return f"({inner})" if isinstance(value, tuple) else f"[{inner}]"
        if is_dataclass(value) and (found := home(type(value))) is not None:
            held = {field.name: self._code(getattr(value, field.name)) for field in fields(value) if field.init}
            if None in held.values():
                return None
            self._import(f"from {found[0]} import {found[1]}")
            return f"{found[1]}({', '.join(f'{name}={code}' for name, code in held.items())})"
        return None

    def _tensor(self, value: Tensor) -> str | None:
        if value.numel() > _EMBEDDED or value.is_complex() or value.is_quantized:
            return None
        exact = value.detach().double() if value.is_floating_point() else value.detach()
        listed = str(exact.tolist())  # A float's repr is exact; only inf and nan are names.
        if value.is_floating_point() and "n" in listed:
            self._import("from math import inf, nan")
        made = f"torch.tensor({listed}, dtype={exact.dtype})"
        made += f".to({value.dtype})" if exact.dtype != value.dtype else ""
        return made + ("" if value.device.type == "cpu" else f".to({str(value.device)!r})")


def home(value: object) -> tuple[str, str] | None:
    """(module, name) from which a function or class is imported; None for lambdas, methods and what has no name."""
    name = getattr(value, "__name__", None)
    for module in ("torch.nn.functional", "torch", getattr(value, "__module__", None)):
        if name and module and module != "__main__" and getattr(sys.modules.get(module), name, None) is value:
            return module, name
    return None


def described(value: object) -> str:
    """What ``value`` is, in a few words."""
    if isinstance(value, Tensor):
        return f"a tensor {list(value.shape)}, {value.dtype}"
    code = getattr(value, "__code__", None)
    name = getattr(value, "__qualname__", None) or type(value).__qualname__
    return name if code is None else f"{name}, {code.co_filename}:{code.co_firstlineno}"
