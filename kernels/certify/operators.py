"""Every row-wise operator of a kernel set, in the shapes and dtypes that are probed."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from detharness.kernels.certify.rows import RowOperator
from detharness.kernels.contract import PRECISIONS, KernelSet, SamplingRows

# (K, N): a usual layer, one with odd sizes and a short last leaf, one of a single column, and a long reduction.
SHAPES = ((576, 96), (97, 33), (64, 1), (1536, 64))
_VOCABULARY = 531


def row_operators(kernels: KernelSet) -> Iterator[RowOperator]:
    """The operators of ``kernels`` on independent rows; attention is probed apart."""
    generator = torch.Generator().manual_seed(20261202)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    for name, held in PRECISIONS.items():
        for length, columns in SHAPES:
            weight, bias = normal(columns, length).to(held.weights), normal(columns).to(held.activations)
            packed = kernels.pack_linear([weight], [bias if columns % 2 else None], held.activations)
            yield RowOperator(
                f"linear {name} {length}x{columns}",
                length,
                held.activations,
                lambda x, ids, packed=packed: kernels.linear(x, packed),  # type: ignore[misc]
                kernels.dispatch_borders(length),
            )
    for dtype in (torch.float32, torch.bfloat16):
        yield from _pointwise(kernels, dtype)
    yield RowOperator("log_softmax fp32", _VOCABULARY, torch.float32, lambda x, ids: kernels.log_softmax(x))
    for name, masks in {"all": (0, 1.0, 0.0), "masked": (40, 0.9, 0.01), "greedy": (0, 1.0, 0.0)}.items():
        yield RowOperator(
            f"sample {name}",
            _VOCABULARY,
            torch.float32,
            lambda x, ids, name=name, masks=masks: _sampled(kernels, x, ids, name != "greedy", *masks),  # type: ignore[misc]
        )


def _pointwise(kernels: KernelSet, dtype: torch.dtype) -> Iterator[RowOperator]:
    name = {torch.float32: "fp32", torch.bfloat16: "bf16"}[dtype]
    generator = torch.Generator().manual_seed(20261203)
    norm = torch.randn(577, generator=generator).to(dtype)
    angles = torch.randn(1024, 16, generator=generator)
    cos, sin = angles.cos(), angles.sin()
    table = kernels.pack_linear([torch.randn(1024, 97, generator=generator).to(dtype)], [None], dtype)

    def added(x: Tensor, ids: Tensor) -> Tensor:
        rows, total = kernels.add_rms_norm(x[:, :577], x[:, 577:].contiguous(), norm, 1e-5)
        return torch.cat([rows, total], dim=1)

    def rotated(x: Tensor, ids: Tensor) -> Tensor:
        q, k = x[:, :96].reshape(-1, 3, 32), x[:, 96:].reshape(-1, 1, 32)
        return torch.cat([part.flatten(1) for part in kernels.rope(q, k, cos[ids], sin[ids])], dim=1)

    yield RowOperator(f"rms_norm {name}", 577, dtype, lambda x, ids: kernels.rms_norm(x, norm, 1e-5))
    yield RowOperator(f"add_rms_norm {name}", 2 * 577, dtype, added)
    yield RowOperator(f"rope {name}", 128, dtype, rotated)
    yield RowOperator(f"silu_and_mul {name}", 2 * 161, dtype, lambda x, ids: kernels.silu_and_mul(x))
    yield RowOperator(f"embedding {name}", 1, dtype, lambda x, ids: kernels.embedding(ids, table, dtype))


def _sampled(
    kernels: KernelSet, logits: Tensor, ids: Tensor, draws: bool, top_k: int, top_p: float, min_p: float
) -> Tensor:
    """Token and processed logprobs, side by side as bits."""
    count = len(ids)
    rows = SamplingRows(
        temperature=torch.full((count,), 0.8 if draws else 0.0, dtype=torch.float64),
        top_k=torch.full((count,), top_k),
        top_p=torch.full((count,), top_p, dtype=torch.float64),
        min_p=torch.full((count,), min_p, dtype=torch.float64),
        seed=ids * 7919 + 1,
        sample_index=ids % 3,
        position=ids + 5,
        vocab_limit=_VOCABULARY - 3,
    )
    drawn = kernels.sample(logits, rows, want_processed=True)
    assert drawn.processed_logprobs is not None
    bits = drawn.processed_logprobs.contiguous().view(torch.int32).long()
    return torch.cat([drawn.token_ids[:, None], bits], dim=1)
