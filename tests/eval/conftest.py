"""Runs written by hand from the rows of eval/records.py, so that nothing here has to generate."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from detharness.eval.records import Generation, Output, TaskRow
from detharness.records.canonical import canonical_bytes
from detharness.records.digests import sha256_value


class RunMaker:
    """Writes run folders; every part has a default that a test overrides."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @staticmethod
    def row(task_id="t0", gold="33", *, modality="text", options=None, extra=None, question="How many?", line=1):
        return TaskRow(
            task_id=task_id,
            line=line,
            modality=modality,
            row_digest=sha256_value([task_id, gold]),
            question=question,
            gold=gold,
            options=options,
            permutation=None,
            messages=({"role": "user", "content": question},),
            extra=extra or {},
        )

    @staticmethod
    def output(text="The answer is \\boxed{33}.", **fields):
        plain = {
            "reasoning": None,
            "token_ids": None,
            "finish_reason": "stop",
            "prompt_tokens": 5,
            "completion_tokens": 7,
            "logprob_bits_digest": None,
        }
        return Output(text=text, **{**plain, **fields})

    def answer(self, row, sample=0, text="The answer is \\boxed{33}.", *, task="aime2026", seed=None, **fields):
        temperature = fields.pop("temperature", 0.8)
        place = {name: fields.pop(name) for name in ("attempt", "session") if name in fields}
        return Generation(
            task=task,
            task_id=row.task_id,
            sample_index=sample,
            modality=row.modality,
            row_digest=row.row_digest,
            request=self.request(row, sample, temperature, seed),
            status="ok",
            output=self.output(text, **fields),
            error=None,
            batch=None,
            seconds=1.5,
            **{"attempt": 0, "session": 0, **place},
        )

    def failure(self, row, sample=0, *, task="aime2026", kind="http_500", attempt=0, session=0):
        return Generation(
            task=task,
            task_id=row.task_id,
            sample_index=sample,
            attempt=attempt,
            modality=row.modality,
            row_digest=row.row_digest,
            request=self.request(row, sample, 0.8, None),
            status="error",
            output=None,
            error={"kind": kind, "detail": "it broke"},
            batch=None,
            session=session,
            seconds=0.5,
        )

    @staticmethod
    def request(row, sample, temperature, seed):
        return {
            "task_version": "1",
            "template_digest": "t" * 64,
            "messages_digest": sha256_value(list(row.messages)),
            "sampling": {"temperature": temperature, "max_tokens": 64},
            "seed": int(sha256_value([row.task_id, sample])[:8], 16) if seed is None else seed,
            "target_digest": "d" * 64,
        }

    @staticmethod
    def line(generation):
        return canonical_bytes(generation.as_row()) + b"\n"

    def write(self, rows, generations, *, samples=1, task="aime2026", name="run", **manifest):
        """A run folder; ``generations`` may hold raw bytes, written as they are."""
        folder = self.folder / name
        folder.mkdir()
        (folder / "manifest.json").write_text(json.dumps({"task": task, "samples": samples, **manifest}))
        (folder / "tasks.jsonl").write_bytes(b"".join(canonical_bytes(asdict(row)) + b"\n" for row in rows))
        lines = (item if isinstance(item, bytes) else self.line(item) for item in generations)
        (folder / "generations.jsonl").write_bytes(b"".join(lines))
        return folder


@pytest.fixture
def runs(tmp_path):
    return RunMaker(tmp_path)
