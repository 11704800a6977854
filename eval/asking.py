"""Between records and targets: a recorded request as it is sent, and a reply as it is recorded.

``generate`` asks a cell for the first time and ``verify`` asks it again; both build the request from the same record.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

from detharness.eval.records import Output, TaskRow
from detharness.eval.tasks import messages_for
from detharness.records.digests import sha256_bytes
from detharness.targets.generation import GenerationError, GenerationRequest, Reply


def request_of(record: Mapping[str, Any], row: TaskRow, images: Mapping[str, str]) -> GenerationRequest:
    """The request that ``record``, a ``Generation.request``, stands for; ``images`` as in ``messages_for``."""
    sampling = record["sampling"]
    return GenerationRequest(
        messages=messages_for(row, images),
        max_tokens=sampling["max_tokens"],
        temperature=sampling["temperature"],
        top_p=sampling["top_p"],
        top_k=sampling["top_k"],
        min_p=sampling["min_p"],
        stop=tuple(sampling["stop"]),
        seed=record["seed"],
    )


def output_of(reply: Reply) -> Output:
    """What a record keeps of ``reply``; GenerationError where it says nothing or no record can hold it as it came."""
    if reply.text is None and not reply.reasoning:
        raise GenerationError("no_content", "the reply holds neither a text nor reasoning", retriable=True)
    for text in (reply.text, reply.reasoning, reply.finish_reason):
        if text is not None and any("\ud800" <= character <= "\udfff" for character in text):
            raise GenerationError("bad_response", "the reply holds a lone surrogate, which is no text", retriable=False)
    bits = None
    if reply.logprobs is not None:
        bits = sha256_bytes(struct.pack(f"<{len(reply.logprobs)}f", *reply.logprobs))
    return Output(
        text=reply.text,
        reasoning=reply.reasoning,
        token_ids=reply.token_ids,
        finish_reason=reply.finish_reason,
        prompt_tokens=reply.prompt_tokens,
        completion_tokens=reply.completion_tokens,
        logprob_bits_digest=bits,
    )
