"""Kernel set "invariant", C++ backend: row-pure kernels built on first use with the system's compiler.

A plain C ABI through ctypes, without the headers of torch: the build takes seconds and does not depend on torch's
version. The library has its own threads (``pool.cpp`` says why) and takes torch's thread count at every call.
"""

from detharness.kernels.cpu.build import BuildError
from detharness.kernels.cpu.kernels import CppKernels, load

__all__ = ["BuildError", "CppKernels", "load"]
