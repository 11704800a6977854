"""The operator table, reduction plans, schedules, and what a kernel set must offer.

Row purity: an operator's output row depends only on its own input row, its absolute token position, the weights
and its own KV prefix. A **reduction plan** fixes the order in which numbers are added and is a function of the
weight's shape and dtype, or of the absolute position; never of the batch. A **schedule** is everything else (row
tiles, threads over independent outputs) and may change at any time, because it cannot change a bit.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from detharness.errors import BackendWarning, UsageError

KernelName = Literal["torch", "invariant", "mutant"]
Backend = Literal["auto", "cpp", "pytorch"]

OPERATORS = (
    "linear",
    "embedding",
    "rms_norm",
    "add_rms_norm",
    "rope",
    "write_kv",
    "attention",
    "silu_and_mul",
    "log_softmax",
    "sample",
)

MAX_LEAF = 512  # Longer chains miss "error at most twice the library's" (docs/architecture.md, plans).
MIN_LEAVES = 8


@dataclass(frozen=True)
class ReductionPlan:
    """The order of one reduction: ``leaves`` partial sums of ``leaf_length`` elements, merged pairwise.

    ``length`` is the number of elements reduced; ``leaves`` is a power of two; the last leaves may be short or
    empty (zero padding is an exact no-op). ``leaf_order`` names how a leaf is summed inside; ``merge`` how the
    fp32 partials are combined: "pairwise" is ((l0+l1)+(l2+l3))+..., "ascending" is ((l0+l1)+l2)+...
    """

    operator: str
    length: int
    leaves: int
    leaf_length: int
    leaf_order: str
    merge: Literal["pairwise", "ascending"]

    @property
    def id(self) -> str:
        """A stable one-line name, as it appears in traces and reports."""
        return f"{self.operator}:{self.length}={self.leaves}x{self.leaf_length}:{self.leaf_order}:{self.merge}"


def tree_plan(operator: str, length: int, leaf_order: str) -> ReductionPlan:
    """Return the balanced tree for a reduction over ``length`` elements: at least 8 leaves where it allows.

    Leaves double until none is longer than 512. A ``length`` below 8 gets one leaf per element, rounded up to a
    power of two.
    """
    if length < 1:
        raise ValueError(f"a reduction needs at least one element, got {length}")
    leaves = MIN_LEAVES
    while leaves > length:
        leaves //= 2
    while -(-length // leaves) > MAX_LEAF:
        leaves *= 2
    return ReductionPlan(operator, length, leaves, -(-length // leaves), leaf_order, "pairwise")


@dataclass(frozen=True)
class Schedule:
    """Row tiles, ascending: M rows are cut into tiles of these sizes, the last one padded. Cannot change a bit."""

    row_tiles: tuple[int, ...]


@dataclass(frozen=True)
class PagedBatch:
    """Where the rows of one step stand. All tensors int64 on the CPU or the device of the pages.

    positions     [M]     absolute token position of each row
    slots         [M]     page * page_size + offset: where the row's key and value are written
    row_starts    [R+1]   request r owns rows row_starts[r]:row_starts[r+1], at ascending contiguous positions
    context_lens  [R]     tokens of request r in the cache after this step's write (its last position + 1)
    block_tables  [R, P]  page numbers by position // page_size, padded with -1
    page_size     tokens per page
    """

    positions: Tensor
    slots: Tensor
    row_starts: Tensor
    context_lens: Tensor
    block_tables: Tensor
    page_size: int


@dataclass(frozen=True)
class SamplingRows:
    """Per-row sampling inputs, all [M]: the token drawn is a pure function of these and the row's logits.

    temperature, top_p, min_p: float64. top_k, seed, sample_index, position: int64 (``top_k`` 0 means off;
    ``position`` is the absolute position of the token being drawn). ``vocab_limit``: ids at or above it are
    padding rows of the embedding and are never drawn.
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    seed: Tensor
    sample_index: Tensor
    position: Tensor
    vocab_limit: int


@dataclass(frozen=True)
class SampledRows:
    """``token_ids`` [M] int64; ``processed_logprobs`` [M, V] fp32, after temperature and masks (None unless asked)."""

    token_ids: Tensor
    processed_logprobs: Tensor | None


@dataclass(frozen=True)
class DecoderLayer:
    """One layer's operands: norm weights as tensors, linear weights as ``pack_linear`` gave them."""

    input_norm: Tensor
    qkv: Any
    q_norm: Tensor | None
    k_norm: Tensor | None
    output: Any
    mlp_norm: Tensor
    gate_up: Any
    down: Any
    window: int | None


@dataclass(frozen=True)
class DecoderStack:
    """A whole decoder's operands. ``table`` and ``head`` are packed (one object where they are tied)."""

    table: Any
    layers: tuple[DecoderLayer, ...]
    final_norm: Tensor
    head: Any
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    scale: float
    dtype: torch.dtype  # Of activations and KV pages.


@dataclass(frozen=True)
class ForwardStep:
    """One step's rows: token_ids [M] int64, cos and sin fp32 [M, D/2], logit_rows [L] int64."""

    token_ids: Tensor
    batch: PagedBatch
    cos: Tensor
    sin: Tensor
    logit_rows: Tensor


FusedForward = Callable[[ForwardStep, Sequence[Tensor], Sequence[Tensor]], Tensor]
"""(step, key pages by layer, value pages by layer) -> logits [L, V] in the activations' dtype."""


class KernelSet(ABC):
    """One implementation of every operator in ``OPERATORS``.

    Activations are fp32 or bf16, [M, ...] with M rows; accumulation is fp32. ``name`` is the policy ("torch" is
    the library default, "invariant" is row-pure, "mutant" is faulty on purpose and has no way in by name), ``backend``
    how it is built, or which mutant it is; both appear in every report.
    """

    name: KernelName
    backend: str

    @abstractmethod
    def pack_linear(
        self, weights: Sequence[Tensor], biases: Sequence[Tensor | None], dtype: torch.dtype | None = None
    ) -> Any:
        """Pack weights [N_i, K] (joined along N) and biases [N_i] once; the result is opaque to the caller.

        ``dtype`` is that of the rows it will meet, None for the weights' own: bf16 weights may meet fp32 rows, and then
        the arithmetic is fp32.
        Nothing of ``weights`` is kept but by the library set, so that they need not stay in memory.
        """

    @abstractmethod
    def linear(self, x: Tensor, packed: Any) -> Tensor:
        """x [M, K] -> [M, sum N_i] in x.dtype."""

    @abstractmethod
    def embedding(self, ids: Tensor, packed: Any, dtype: torch.dtype) -> Tensor:
        """ids [M] int64 -> rows [M, K] of packed weights [V, K], in ``dtype``."""

    @abstractmethod
    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """x [..., K] -> x / sqrt(mean(x²) + eps) * weight, computed in fp32, returned in x.dtype."""

    @abstractmethod
    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """s = x + residual (rounded to x.dtype); returns (rms_norm(s), s)."""

    @abstractmethod
    def rope(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Rotate q [M, H, D] and k [M, Hkv, D] by halves; cos and sin are fp32 [M, D/2] for the rows' positions."""

    @abstractmethod
    def write_kv(self, k: Tensor, v: Tensor, k_pages: Tensor, v_pages: Tensor, slots: Tensor) -> None:
        """Store k, v [M, Hkv, D] into pages [pages, page_size, Hkv, D] at ``slots`` [M]."""

    @abstractmethod
    def attention(
        self,
        q: Tensor,
        k_pages: Tensor,
        v_pages: Tensor,
        batch: PagedBatch,
        scale: float,
        window: int | None,
    ) -> Tensor:
        """Causal paged attention, q [M, H, D] -> [M, H, D]; H is a multiple of Hkv.

        Row at position p attends keys j with j <= p, and with ``window`` also j > p - window (the current token
        counts). Slots past a request's context are never read.
        """

    @abstractmethod
    def silu_and_mul(self, gate_up: Tensor) -> Tensor:
        """gate_up [M, 2I] (gate first) -> silu(gate) * up, [M, I]."""

    @abstractmethod
    def log_softmax(self, logits: Tensor) -> Tensor:
        """logits [M, V] fp32 -> fp32 log-probabilities."""

    @abstractmethod
    def sample(self, logits: Tensor, rows: SamplingRows, *, want_processed: bool) -> SampledRows:
        """Draw one token per row from logits [M, V] fp32; see ``kernels.sampling``."""

    def fuse(self, stack: DecoderStack) -> FusedForward | None:
        """The whole decoder as one call with the bits of its operators called one by one; None where there is none."""
        return None

    def dispatch_borders(self, length: int) -> tuple[int, ...]:
        """Row counts at which ``linear`` over ``length`` elements changes its way of working; () if none is known."""
        return ()

    @abstractmethod
    def identity(self) -> str:
        """SHA-256 over what decides this set's arithmetic beside the libraries it calls: its sources, its build."""

    @abstractmethod
    def plan_ids(self) -> tuple[str, ...]:
        """Ids of the reduction plans used so far, sorted; empty where the library decides."""


def kernel_set(name: str, backend: Backend = "auto") -> KernelSet:
    """Return the kernel set called ``name`` ("torch" or "invariant") for the CPU.

    ``backend`` chooses how the invariant set is built. "auto" takes C++ and, where that cannot be built or run,
    PyTorch, with one ``BackendWarning``; "cpp" and "pytorch" insist, and "cpp" raises KernelError where it cannot be.
    """
    if name == "torch":
        from detharness.kernels.library import LibraryKernels

        return LibraryKernels()
    if name != "invariant":
        raise UsageError(f"unknown kernel set {name!r}: use 'torch' or 'invariant'")
    if backend != "pytorch":
        from detharness.kernels import cpu

        try:
            return cpu.load()
        except cpu.BuildError as error:
            if backend == "cpp":
                raise
            warnings.warn(
                f"the invariant kernels run on their slower PyTorch backend, because {error}",
                BackendWarning,
                stacklevel=2,
            )
    from detharness.kernels.pytorch import RowPureKernels

    return RowPureKernels()


@dataclass(frozen=True)
class Precision:
    """What numbers are held in: ``activations`` (KV pages too) and the ``weights`` of linear layers and embedding."""

    activations: torch.dtype
    weights: torch.dtype


PRECISIONS: Mapping[str, Precision] = {
    "fp32": Precision(torch.float32, torch.float32),
    "bf16": Precision(torch.bfloat16, torch.bfloat16),
    "bf16w": Precision(torch.float32, torch.bfloat16),  # Half the weights' bytes, and fp32 everywhere else.
}


def precision(name: str) -> Precision:
    """The precision called ``name``: "fp32", "bf16", or "bf16w"."""
    try:
        return PRECISIONS[name]
    except KeyError:
        raise UsageError(f"unknown dtype {name!r}: use {', '.join(map(repr, PRECISIONS))}") from None
