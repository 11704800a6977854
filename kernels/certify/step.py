"""The probe of a whole step in one call: a request's logits alone, in company, in chunks, and decoded one by one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from detharness.kernels.certify.rows import Finding, bits
from detharness.kernels.contract import DecoderLayer, DecoderStack, ForwardStep, FusedForward, KernelSet, PagedBatch
from detharness.kernels.threads import intraop_threads

_PROMPTS = (1, 5, 64, 65, 90)  # Tokens of each request.
_LAYERS, _HEADS, _KV_HEADS, _WIDTH, _INNER, _VOCABULARY, _PAGE = 2, 4, 2, 24, 161, 265, 16
# How the requests' tokens are cut into calls: (request, first token, last token) in the slots of each call.
_Call = list[tuple[int, int, int]]


def probe_step(kernels: KernelSet, dtype: torch.dtype, name: str, threads: Sequence[int]) -> Finding | None:
    """Compare the logits of every request's last token; None where the set has no such call."""
    forward = kernels.fuse(_stack(kernels, dtype))
    if forward is None:
        return None
    probe, title, cases = _StepProbe(forward, dtype), f"step {name}", 0
    with intraop_threads(threads[0]):
        alone = {r: probe.play([[(r, 0, length)]])[r] for r, length in enumerate(_PROMPTS)}
    whole = [(r, 0, length) for r, length in enumerate(_PROMPTS)]
    halves: list[_Call] = [
        [(r, 0, length // 2) for r, length in enumerate(_PROMPTS) if length > 1],
        [(r, length // 2, length) for r, length in reversed(list(enumerate(_PROMPTS)))],
    ]
    mixed: list[_Call] = [[(4, 0, 89), (0, 0, 1), (2, 0, 63)], [(2, 63, 64), (3, 0, 65), (4, 89, 90), (1, 0, 5)]]
    for count in threads:
        for what, calls in (("together", [whole]), ("in chunks", halves), ("as decodes beside prefill", mixed)):
            with intraop_threads(count):
                found = probe.play(calls)
            cases += len(found)
            moved = [r for r, logits in found.items() if not torch.equal(logits, alone[r])]
            if moved:
                which = f"a prompt of {_PROMPTS[moved[0]]} tokens has other logits than alone"
                return Finding(title, cases, f"{what}, {count} threads: {which}")
    return Finding(title, cases, None)


def _stack(kernels: KernelSet, dtype: torch.dtype) -> DecoderStack:
    generator = torch.Generator().manual_seed(20261205)
    hidden = _HEADS * _WIDTH

    def packed(*rows: int, columns: int = hidden) -> object:
        weights = [torch.randn(n, columns, generator=generator).mul(columns**-0.5).to(dtype) for n in rows]
        return kernels.pack_linear(weights, [None] * len(rows), dtype)

    norm = (1 + 0.1 * torch.randn(hidden, generator=generator)).to(dtype)
    layers = tuple(
        DecoderLayer(
            input_norm=norm,
            qkv=packed(hidden, _KV_HEADS * _WIDTH, _KV_HEADS * _WIDTH),
            q_norm=None,
            k_norm=None,
            output=packed(hidden),
            mlp_norm=norm,
            gate_up=packed(_INNER, _INNER),
            down=packed(hidden, columns=_INNER),
            window=None if index else 21,
        )
        for index in range(_LAYERS)
    )
    return DecoderStack(
        table=packed(_VOCABULARY),
        layers=layers,
        final_norm=norm,
        head=packed(_VOCABULARY),
        heads=_HEADS,
        kv_heads=_KV_HEADS,
        head_dim=_WIDTH,
        eps=1e-5,
        scale=_WIDTH**-0.5,
        dtype=dtype,
    )


class _StepProbe:
    def __init__(self, forward: FusedForward, dtype: torch.dtype) -> None:
        self._forward = forward
        self._dtype = dtype
        generator = torch.Generator().manual_seed(20261206)
        angles = torch.randn(max(_PROMPTS), _WIDTH // 2, generator=generator)
        self._cos, self._sin = angles.cos(), angles.sin()

    def play(self, calls: Sequence[_Call]) -> dict[int, Tensor]:
        """Logit bits of each request's last token, over all calls on one pool whose free slots hold NaN."""
        width = -(-max(_PROMPTS) // _PAGE)
        shape = (width * len(_PROMPTS), _PAGE, _KV_HEADS, _WIDTH)
        keys = [torch.full(shape, torch.nan).to(self._dtype) for _ in range(_LAYERS)]
        values = [page.clone() for page in keys]
        found: dict[int, Tensor] = {}
        for call in calls:
            step, last = self._step(call, width)
            logits = bits(self._forward(step, keys, values))
            found.update({r: row for r, row in zip(last, logits, strict=True) if r is not None})
        return found

    def _step(self, call: _Call, width: int) -> tuple[ForwardStep, list[int | None]]:
        positions = torch.cat([torch.arange(first, end) for _, first, end in call])
        owners = torch.cat([torch.full((end - first,), request) for request, first, end in call])
        tables = torch.tensor([list(range(request * width, (request + 1) * width)) for request, _, _ in call])
        ends = torch.tensor([end - first for _, first, end in call]).cumsum(0)
        batch = PagedBatch(
            positions=positions,
            slots=owners * width * _PAGE + positions,
            row_starts=torch.cat([torch.zeros(1, dtype=torch.int64), ends]),
            context_lens=torch.tensor([end for _, _, end in call]),
            block_tables=tables,
            page_size=_PAGE,
        )
        tokens = (owners * 31 + positions * 7) % _VOCABULARY
        step = ForwardStep(tokens, batch, self._cos[positions], self._sin[positions], ends - 1)
        return step, [request if end == _PROMPTS[request] else None for request, _, end in call]
