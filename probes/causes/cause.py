"""What a localisation says: the first operator that differs, and under which schedule each side ran it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from detharness.probes.causes.lineage import RowKey
from detharness.probes.causes.trails import Site
from detharness.targets.protocol import StepRecord

Status = Literal["found", "not_reproduced", "unexplained"]
"""found: an operator is named. not_reproduced: the runs agree when every operator is observed. unexplained: replies
differ, and every operator, the logprobs and the draw agree."""

OUTSIDE = -1  # The layer of what stands outside the layers: embedding, final norm, head, sampler.


@dataclass(frozen=True)
class Cause:
    """Where two plays part first, in the order of computation.

    operator: as the decoder names it ("linear.qkv", "attention", ...), or "log_softmax" or "sample" where all before
    them agree. position: absolute position of the row, or of the token drawn. step: the trial's step.
    plan: ids of the reduction plans that the kernel set names for this operator and length, of either side; empty
    where the library decides. schedule: {"reference": ..., "trial": ...}, see ``schedule_of``, each with its plans.
    ulp_histogram: see ``ulp.ulp_histogram``; None where no row was compared. same_bits_observed: whether observing left
    both replies as they are without it. rows_before: rows compared until here, all of whose operators agreed.
    """

    status: Status
    operator: str | None = None
    layer: int | None = None
    position: int | None = None
    step: int | None = None
    plan: tuple[str, ...] = ()
    schedule: dict[str, dict[str, Any]] | None = None
    ulp_histogram: list[dict[str, int]] | None = None
    same_bits_observed: bool = True
    rows_before: int = 0

    def as_record(self) -> dict[str, Any]:
        """Plain values for a record."""
        return {**asdict(self), "plan": list(self.plan)}


def schedule_of(record: StepRecord, row: RowKey) -> dict[str, Any]:
    """How one side ran a row: who shared the step, where the row stood, and in what pages and threads."""
    slot, group = next(
        (index, group)
        for index, group in enumerate(record.groups)
        if (group.request_id, group.sample_index) == (row.request_id, row.sample_index)
    )
    before = sum(len(other.token_ids) for other in record.groups[:slot])
    return {
        "step": record.step,
        "request": row.request_id,
        "kind": group.kind,
        "rows_in_step": record.rows,
        "requests_in_step": len(record.groups),
        "slot": slot,
        "row": before + row.position - group.start_position,
        "chunk": [group.start_position, group.start_position + len(group.token_ids)],
        "longest_context": max(other.start_position + len(other.token_ids) for other in record.groups),
        "logit_rows": len(record.logit_rows),
        "threads": record.threads,
        "page_size": record.page_size,
        "pages": len(group.block_table),
        "pool": record.num_blocks,
    }


def plans_of(record: StepRecord, sites: Sequence[Site], index: int) -> list[str]:
    """Plan ids that the kernel set has used for the operator at ``sites[index]``, at its length where ids say so.

    A linear layer reduces over the row that the site before it put out; a norm over its own row, or over one head.
    """
    site = sites[index]
    family = site.operator.split(".")[0]
    if family == "attention":
        return [plan for plan in record.plan_ids if plan.startswith("attention")]
    if family == "linear":
        return _named(record.plan_ids, "linear", sites[index - 1].width)
    if family in ("rms_norm", "add_rms_norm"):
        return _named(record.plan_ids, "rms_norm", site.width)
    return []  # Embedding, rotation and gating add nothing up.


def _named(plans: Sequence[str], operator: str, length: int) -> list[str]:
    mine = [plan for plan in plans if plan.startswith(f"{operator}:")]
    exact = [plan for plan in mine if plan.startswith(f"{operator}:{length}=")]
    return exact or mine
