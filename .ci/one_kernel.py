"""Run two kernels of the installed package on small tensors; exits with an error if anything is not as it should be."""

import sys
from pathlib import Path

import torch

import detharness
from detharness.kernels.contract import kernel_set

package = Path(detharness.__file__)
assert package.is_relative_to(sys.prefix), f"{package} is not the installed package"

kernels = kernel_set("invariant")
generator = torch.Generator().manual_seed(0)
x = torch.randn(7, 96, generator=generator)
weight = torch.randn(40, 96, generator=generator)
packed = kernels.pack_linear([weight], [None])
whole = kernels.linear(kernels.rms_norm(x, torch.ones(96), 1e-5), packed)
for row in range(7):
    alone = kernels.linear(kernels.rms_norm(x[row : row + 1], torch.ones(96), 1e-5), packed)
    assert torch.equal(alone[0], whole[row]), f"row {row} depends on its neighbours"
print(f"detharness {detharness.__version__}: {kernels.name} kernels ({kernels.backend}) run and are row-pure here")
