"""Kernel set "torch": the library defaults that people run today, honestly. No straw man, no accidental invariance."""

from detharness.kernels.library.kernels import LibraryKernels

__all__ = ["LibraryKernels"]
