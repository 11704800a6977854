"""Faulty norms, gating and rotation: operators that ought to know their own row alone."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from detharness.kernels.elementary import exp64
from detharness.kernels.mutants.faulty import Fault, FaultyKernels
from detharness.kernels.mutants.orders import norm_in_lanes


class _LanesByRows(FaultyKernels):
    """A norm whose sum runs over as many lanes as ``lanes`` says for that many rows; 1 is the sound norm."""

    def lanes(self, rows: int) -> int:
        raise NotImplementedError

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See the contract."""
        lanes = self.lanes(len(x))
        if lanes == 1:
            return self.sound.rms_norm(x, weight, eps)
        return norm_in_lanes(self.sound, x, weight, eps, lanes)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """See the contract."""
        total = self.sound.add_rms_norm(x, residual, weight, eps)[1]
        return self.rms_norm(total, weight, eps), total


class NormBlockByTokens(_LanesByRows):
    """The norm takes smaller blocks once a step holds many tokens (256 in the report, 24 here)."""

    fault = Fault("norm-block-by-tokens", ("vllm#48271", "vllm#48391"), "rms_norm", ("batch_size",))
    many: ClassVar[int] = 24

    def lanes(self, rows: int) -> int:
        """Four from ``many`` rows on."""
        return 4 if rows >= self.many else 1


class RowsPerProgram(_LanesByRows):
    """One program works on several rows as occupancy allows, and shares its lanes among them."""

    fault = Fault("rows-per-program", ("vllm#57280",), "rms_norm", ("batch_size",))

    def lanes(self, rows: int) -> int:
        """Two from two rows on, four from eight."""
        return 4 if rows >= 8 else 2 if rows >= 2 else 1


class ScalarTail(FaultyKernels):
    """SiLU's vector body and its scalar tail round differently, and where the tail starts depends on all rows."""

    fault = Fault("scalar-tail", (), "silu_and_mul", ("slot", "batch_size"))
    vector: ClassVar[int] = 64  # Elements in the unrolled body.

    def silu_and_mul(self, gate_up: Tensor) -> Tensor:
        """See the contract."""
        out = self.sound.silu_and_mul(gate_up)
        tail = out.numel() % self.vector
        if tail:
            gate, up = (half.reshape(-1)[-tail:].double() for half in gate_up.chunk(2, dim=1))
            out.view(-1)[-tail:] = ((gate * up) / (1.0 + exp64(-gate))).to(out.dtype)
        return out


class OnePositionForAll(FaultyKernels):
    """A step of decode size rotates every row by the angle of row 0, as if all requests were equally long."""

    fault = Fault("one-position-for-all", ("reasoning-from-scratch#33", "mlx#3494"), "rope", ("slot",))
    decode_size: ClassVar[int] = 8

    def rope(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """See the contract."""
        if len(q) <= self.decode_size:
            cos, sin = cos[:1].expand_as(cos), sin[:1].expand_as(sin)
        return self.sound.rope(q, k, cos, sin)
