"""Kernel set "invariant", PyTorch backend: row-pure by construction, or by a bit probe of this host.

Reductions that are not matrix products are trees of plain adds (``kernels.elementary``). Matrix products run in a few
fixed shapes only, each proved on this host before it is used (``tiles``).
"""

from detharness.kernels.pytorch.kernels import RowPureKernels

__all__ = ["RowPureKernels"]
