"""The decoder: Llama, Mistral, Qwen2 and Qwen3 as one sequence of operators from a kernel set.

The model knows nothing of requests or schedules; it sees rows, their positions and their pages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from detharness.checkpoints.config import ModelConfig
from detharness.engine.pages import KVPages
from detharness.engine.rotary import RotaryTable
from detharness.kernels.contract import KernelSet, PagedBatch

Observer = Callable[[int, str, Tensor], None]
"""Called with (layer, operator, output rows [M, ...]); layer -1 is what stands outside the layers."""


@dataclass(frozen=True)
class _Layer:
    input_norm: Tensor
    qkv: Any
    q_norm: Tensor | None
    k_norm: Tensor | None
    output: Any
    mlp_norm: Tensor
    gate_up: Any
    down: Any
    window: int | None


class Decoder:
    """Weights packed once for ``kernels``; ``forward`` runs one step's rows through every layer."""

    def __init__(self, config: ModelConfig, weights: Mapping[str, Tensor], kernels: KernelSet) -> None:
        self.config = config
        self.kernels = kernels
        self._rotary = RotaryTable(config)
        self._embedding = weights["model.embed_tokens.weight"]
        self.dtype = self._embedding.dtype
        self._layers = [self._load_layer(index, weights) for index in range(config.num_layers)]
        self._final_norm = weights["model.norm.weight"]
        head = self._embedding if config.tie_embeddings else weights["lm_head.weight"]
        self._head = kernels.pack_linear([head], [None])

    def _load_layer(self, index: int, weights: Mapping[str, Tensor]) -> _Layer:
        config = self.config
        prefix = f"model.layers.{index}."

        def packed(names: list[str], has_bias: bool) -> Any:
            return self.kernels.pack_linear(
                [weights[f"{prefix}{name}.weight"] for name in names],
                [weights[f"{prefix}{name}.bias"] if has_bias else None for name in names],
            )

        attention = "self_attn."
        return _Layer(
            input_norm=weights[f"{prefix}input_layernorm.weight"],
            qkv=packed([f"{attention}{name}_proj" for name in "qkv"], config.qkv_bias),
            q_norm=weights[f"{prefix}{attention}q_norm.weight"] if config.qk_norm else None,
            k_norm=weights[f"{prefix}{attention}k_norm.weight"] if config.qk_norm else None,
            output=packed([f"{attention}o_proj"], config.output_bias),
            mlp_norm=weights[f"{prefix}post_attention_layernorm.weight"],
            gate_up=packed(["mlp.gate_proj", "mlp.up_proj"], config.mlp_bias),
            down=packed(["mlp.down_proj"], config.mlp_bias),
            window=config.windows[index],
        )

    def forward(
        self,
        token_ids: Tensor,
        batch: PagedBatch,
        pages: KVPages,
        logit_rows: Tensor,
        observe: Observer | None = None,
    ) -> Tensor:
        """token_ids [M] int64 at ``batch.positions`` -> logits fp32 [len(logit_rows), V] of the chosen rows.

        Writes the rows' keys and values into ``pages``. Every row is computed through every layer.
        """
        with torch.inference_mode():
            return self._forward(token_ids, batch, pages, logit_rows, observe or _ignore)

    def _forward(
        self, token_ids: Tensor, batch: PagedBatch, pages: KVPages, logit_rows: Tensor, observe: Observer
    ) -> Tensor:
        config, kernels = self.config, self.kernels
        rows = token_ids.shape[0]
        heads, kv_heads, width = config.num_heads, config.num_kv_heads, config.head_dim
        scale = width**-0.5
        cos, sin = self._rotary.rows(batch.positions)

        residual = kernels.embedding(token_ids, self._embedding)
        observe(-1, "embedding", residual)
        hidden = kernels.rms_norm(residual, self._layers[0].input_norm, config.rms_eps)
        observe(0, "rms_norm", hidden)
        for index, layer in enumerate(self._layers):
            qkv = kernels.linear(hidden, layer.qkv)
            observe(index, "linear.qkv", qkv)
            q, k, v = torch.split(qkv, [heads * width, kv_heads * width, kv_heads * width], dim=1)
            q, k = q.reshape(rows, heads, width), k.reshape(rows, kv_heads, width)
            if layer.q_norm is not None and layer.k_norm is not None:
                q = kernels.rms_norm(q, layer.q_norm, config.rms_eps)
                k = kernels.rms_norm(k, layer.k_norm, config.rms_eps)
                observe(index, "rms_norm.q", q)
                observe(index, "rms_norm.k", k)
            q, k = kernels.rope(q, k, cos, sin)
            observe(index, "rope.q", q)
            observe(index, "rope.k", k)
            kernels.write_kv(k, v.reshape(rows, kv_heads, width), pages.keys[index], pages.values[index], batch.slots)
            mixed = kernels.attention(q, pages.keys[index], pages.values[index], batch, scale, layer.window)
            observe(index, "attention", mixed)
            hidden = kernels.linear(mixed.reshape(rows, heads * width), layer.output)
            observe(index, "linear.output", hidden)
            hidden, residual = kernels.add_rms_norm(hidden, residual, layer.mlp_norm, config.rms_eps)
            observe(index, "add_rms_norm.mlp", hidden)
            gate_up = kernels.linear(hidden, layer.gate_up)
            observe(index, "linear.gate_up", gate_up)
            hidden = kernels.silu_and_mul(gate_up)
            observe(index, "silu_and_mul", hidden)
            hidden = kernels.linear(hidden, layer.down)
            observe(index, "linear.down", hidden)
            last = index + 1 == len(self._layers)
            norm = self._final_norm if last else self._layers[index + 1].input_norm
            hidden, residual = kernels.add_rms_norm(hidden, residual, norm, config.rms_eps)
            observe(-1 if last else index + 1, "add_rms_norm.input", hidden)
        # Under row purity, dropping the rows nobody asked for cannot change the others; library kernels may.
        logits = kernels.linear(hidden[logit_rows], self._head)
        return logits.float()


def _ignore(layer: int, operator: str, rows: Tensor) -> None:
    """The observer of a run that nobody observes."""
