"""The decoder: Llama, Mistral, Qwen2 and Qwen3 as one sequence of operators from a kernel set.

The model knows nothing of requests or schedules; it sees rows, their positions and their pages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from detharness.checkpoints.config import ModelConfig
from detharness.checkpoints.weights import Weights
from detharness.engine.pages import KVPages
from detharness.engine.rotary import RotaryTable
from detharness.kernels.contract import (
    PRECISIONS,
    DecoderLayer,
    DecoderStack,
    ForwardStep,
    KernelSet,
    PagedBatch,
    Precision,
)

HEAD = "linear.head"

Observer = Callable[[int, str, Tensor], None]
"""Called with (layer, operator, output rows [M, ...]); layer -1 is what stands outside the layers.

``HEAD`` comes last and has one row for each of the step's logit rows, in their order.
"""


class Decoder:
    """Weights packed once for ``kernels``; ``forward`` runs one step's rows through every layer.

    ``weight_dtype`` is what linear layers and embedding are held in, None for that of ``weights``; norms and biases
    keep theirs. Nothing refers to ``weights`` afterwards, unless the kernel set itself does.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        kernels: KernelSet,
        *,
        weight_dtype: torch.dtype | None = None,
    ) -> None:
        self.config = config
        self.kernels = kernels
        self.dtype = weights.dtype
        self._weight_dtype = weight_dtype or weights.dtype
        self._rotary = RotaryTable(config)
        table = self._packed(weights, ["model.embed_tokens"], has_bias=False)
        self._stack = DecoderStack(
            table=table,
            layers=tuple(self._load_layer(index, weights) for index in range(config.num_layers)),
            final_norm=weights["model.norm.weight"].clone(),
            head=table if config.tie_embeddings else self._packed(weights, ["lm_head"], has_bias=False),
            heads=config.num_heads,
            kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            eps=config.rms_eps,
            scale=config.head_dim**-0.5,
            dtype=self.dtype,
        )
        self._fused = kernels.fuse(self._stack)

    @property
    def precision(self) -> str:
        """The name of what numbers are held in, as in ``EngineConfig.dtype``."""
        held = Precision(self.dtype, self._weight_dtype)
        return next(name for name, known in PRECISIONS.items() if known == held)

    def _packed(self, weights: Weights, names: list[str], *, has_bias: bool) -> Any:
        return self.kernels.pack_linear(
            [weights[f"{name}.weight"].to(self._weight_dtype) for name in names],
            [weights[f"{name}.bias"] if has_bias else None for name in names],
            self.dtype,
        )

    def _load_layer(self, index: int, weights: Weights) -> DecoderLayer:
        weights.release()  # Of the layer before: a checkpoint and its packed copy are never in memory together.
        config = self.config
        prefix = f"model.layers.{index}."
        attention = f"{prefix}self_attn."

        def norm(name: str) -> Tensor:
            return weights[f"{prefix}{name}.weight"].clone()  # A view would keep the whole file in memory.

        def linear(names: list[str], *, has_bias: bool) -> Any:
            return self._packed(weights, names, has_bias=has_bias)

        return DecoderLayer(
            input_norm=norm("input_layernorm"),
            qkv=linear([f"{attention}{name}_proj" for name in "qkv"], has_bias=config.qkv_bias),
            q_norm=norm("self_attn.q_norm") if config.qk_norm else None,
            k_norm=norm("self_attn.k_norm") if config.qk_norm else None,
            output=linear([f"{attention}o_proj"], has_bias=config.output_bias),
            mlp_norm=norm("post_attention_layernorm"),
            gate_up=linear([f"{prefix}mlp.gate_proj", f"{prefix}mlp.up_proj"], has_bias=config.mlp_bias),
            down=linear([f"{prefix}mlp.down_proj"], has_bias=config.mlp_bias),
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
            cos, sin = self._rotary.rows(batch.positions)
            step = ForwardStep(token_ids, batch, cos, sin, logit_rows)
            if observe is None and self._fused is not None:
                return self._fused(step, pages.keys, pages.values).float()
            return self._by_operator(step, pages, observe or _ignore)

    def _by_operator(self, step: ForwardStep, pages: KVPages, observe: Observer) -> Tensor:
        stack, kernels, batch = self._stack, self.kernels, step.batch
        rows = step.token_ids.shape[0]
        heads, kv_heads, width, eps = stack.heads, stack.kv_heads, stack.head_dim, stack.eps

        residual = kernels.embedding(step.token_ids, stack.table, self.dtype)
        observe(-1, "embedding", residual)
        hidden = kernels.rms_norm(residual, stack.layers[0].input_norm, eps)
        observe(0, "rms_norm", hidden)
        for index, layer in enumerate(stack.layers):
            qkv = kernels.linear(hidden, layer.qkv)
            observe(index, "linear.qkv", qkv)
            q, k, v = torch.split(qkv, [heads * width, kv_heads * width, kv_heads * width], dim=1)
            q, k = q.reshape(rows, heads, width), k.reshape(rows, kv_heads, width)
            if layer.q_norm is not None and layer.k_norm is not None:
                q = kernels.rms_norm(q, layer.q_norm, eps)
                k = kernels.rms_norm(k, layer.k_norm, eps)
                observe(index, "rms_norm.q", q)
                observe(index, "rms_norm.k", k)
            q, k = kernels.rope(q, k, step.cos, step.sin)
            observe(index, "rope.q", q)
            observe(index, "rope.k", k)
            kernels.write_kv(k, v.reshape(rows, kv_heads, width), pages.keys[index], pages.values[index], batch.slots)
            mixed = kernels.attention(q, pages.keys[index], pages.values[index], batch, stack.scale, layer.window)
            observe(index, "attention", mixed)
            hidden = kernels.linear(mixed.reshape(rows, heads * width), layer.output)
            observe(index, "linear.output", hidden)
            hidden, residual = kernels.add_rms_norm(hidden, residual, layer.mlp_norm, eps)
            observe(index, "add_rms_norm.mlp", hidden)
            gate_up = kernels.linear(hidden, layer.gate_up)
            observe(index, "linear.gate_up", gate_up)
            hidden = kernels.silu_and_mul(gate_up)
            observe(index, "silu_and_mul", hidden)
            hidden = kernels.linear(hidden, layer.down)
            observe(index, "linear.down", hidden)
            last = index + 1 == len(stack.layers)
            norm = stack.final_norm if last else stack.layers[index + 1].input_norm
            hidden, residual = kernels.add_rms_norm(hidden, residual, norm, eps)
            observe(-1 if last else index + 1, "add_rms_norm.input", hidden)
        # Under row purity, dropping the rows nobody asked for cannot change the others; library kernels may.
        logits = kernels.linear(hidden[step.logit_rows], stack.head)
        observe(-1, HEAD, logits)
        return logits.float()


def _ignore(layer: int, operator: str, rows: Tensor) -> None:
    """The observer of a run that nobody observes."""
