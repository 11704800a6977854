"""A kernel set that is given to a target in place of a name: it computes, it is named, nobody certifies it."""

from __future__ import annotations

import pytest

from detharness.errors import UsageError
from detharness.kernels.pytorch import RowPureKernels
from detharness.targets.protocol import Arrival, EngineConfig, SamplingParams


class Given(RowPureKernels):
    name = "mutant"
    backend = "next-token"

    def sample(self, logits, rows, *, want_processed):
        drawn = super().sample(logits, rows, want_processed=want_processed)
        drawn.token_ids.add_(1).remainder_(rows.vocab_limit)
        return drawn


def reply(target):
    arrivals = [Arrival(0, "a", (1, 2, 3), SamplingParams(max_tokens=1))]
    played = target.play(arrivals, EngineConfig(dtype=target.dtype))
    return played.completions["a", 0].token_ids[0], played.trace[0]


def test_a_given_set_computes_and_its_name_stands_in_the_trace(tiny_target):
    sound = tiny_target("llama", "invariant", "fp32")
    token, record = reply(sound.with_kernels(Given()))
    assert token == (reply(sound)[0] + 1) % sound.vocab_size
    assert (record.kernels, record.backend) == ("mutant", "next-token")


def test_a_given_set_has_no_certificate_and_is_not_probed_for_one(tiny_target, monkeypatch):
    def refuse(*args, **options):
        raise AssertionError("a mutant was certified")

    monkeypatch.setattr("detharness.targets.engine.require_certificate", refuse)
    target = tiny_target("llama", "invariant", "fp32").with_kernels(Given())
    assert target.certificate is None
    assert reply(target)


def test_siblings_know_a_given_set_by_its_name_and_go_back_by_another(tiny_target):
    given = Given()
    target = tiny_target("llama", "invariant", "fp32").with_kernels(given)
    sibling = target.with_kernels("mutant", "bf16")
    assert sibling.decoder.kernels is given
    assert (sibling.kernels, sibling.backend, sibling.dtype) == ("mutant", "next-token", "bf16")
    assert sibling.checkpoint.digest == target.checkpoint.digest
    assert sibling.with_kernels("torch").decoder.kernels.name == "torch"


def test_a_mutant_cannot_be_had_by_name(tiny_target):
    with pytest.raises(UsageError, match="unknown kernel set 'mutant'"):
        tiny_target("llama", "invariant", "fp32").with_kernels("mutant")
