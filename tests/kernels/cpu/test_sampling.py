"""The C++ sampler is the Python one, bit for bit: noise, masks, ties, odd rows, processed logprobs; rows are pure."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from detharness.errors import KernelError
from detharness.kernels.contract import SamplingRows
from detharness.kernels.sampling import gumbel_noise, sample
from detharness.kernels.threads import intraop_threads

ROWS = 24


def rules(seed, rows=ROWS, *, limit):
    """Every mask, alone and together, over every kind of temperature."""
    rng = np.random.default_rng(seed)

    def pick(*values):
        return torch.tensor(rng.choice(values, rows))

    return SamplingRows(
        temperature=pick(0.0, 0.3, 1.0, 2.5, 1e-30, 1e-300),
        top_k=pick(0, 1, 5, 50, 10**6),
        top_p=pick(1.0, 0.9, 0.5, 1e-9),
        min_p=pick(0.0, 0.01, 0.5, 1.0),
        seed=torch.tensor(rng.integers(0, 2**63 - 1, rows)),
        sample_index=torch.tensor(rng.integers(0, 9, rows)),
        position=torch.tensor(rng.integers(0, 131072, rows)),
        vocab_limit=limit,
    )


def logits_of(seed, vocabulary, *, ties):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(ROWS, vocabulary, generator=generator) * 4
    if ties:
        logits = (logits * 2).round() / 2
    logits[3, 0] = torch.nan
    logits[4, vocabulary // 2] = torch.nan
    logits[5, vocabulary // 2] = torch.inf
    logits[6] = -torch.inf
    logits[7] = 1e38
    logits[8] = -0.0
    logits[8, vocabulary // 2 :] = 0.0
    logits[9, 1:] = -torch.inf
    return logits


def same(ours, theirs):
    assert torch.equal(ours.token_ids, theirs.token_ids)
    if theirs.processed_logprobs is not None:
        assert torch.equal(ours.processed_logprobs.view(torch.int32), theirs.processed_logprobs.view(torch.int32))


@pytest.mark.parametrize("key", [(0, 0, 0), (2**63 - 1, 3, 131071), (2**32, 1, 1)])
def test_noise_is_the_python_noise_at_every_register_width(kernels_by_width, key):
    expected = gumbel_noise(*key, 5003)
    for ours in kernels_by_width.values():
        noise = np.empty(5003)
        ours._library.gumbel(noise.ctypes.data, *key, 5003)
        assert noise.tobytes() == expected.tobytes()


@pytest.mark.parametrize("want", [False, True], ids=["tokens", "processed"])
@pytest.mark.parametrize("ties", [False, True], ids=["spread", "ties"])
@pytest.mark.parametrize(("vocabulary", "limit"), [(1, 1), (7, 7), (300, 290), (2049, 2049), (49152, 49100)])
def test_every_rule_draws_what_python_draws(kernels_by_width, vocabulary, limit, ties, want):
    logits = logits_of(vocabulary, vocabulary, ties=ties)
    asked = rules(vocabulary + ties, limit=limit)
    for ours in kernels_by_width.values():
        log_softmax = ours.log_softmax if want else None
        same(ours.sample(logits, asked, want_processed=want), sample(logits, asked, log_softmax))


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(
        st.floats(width=32) | st.sampled_from([0.0, -0.0, 1.0, 1.0, 3.4e38, -3.4e38, 1e-45]), min_size=1, max_size=40
    ),
    seed=st.integers(0, 2**32),
)
def test_any_row_draws_what_python_draws(kernels, values, seed):
    logits = torch.tensor([values] * 6, dtype=torch.float32)
    asked = rules(seed, 6, limit=len(values))
    same(kernels.sample(logits, asked, want_processed=True), sample(logits, asked, kernels.log_softmax))


def test_a_row_does_not_feel_its_neighbours_its_slot_or_the_threads(kernels):
    logits = logits_of(11, 5000, ties=True)
    asked = rules(12, limit=5000)
    together = kernels.sample(logits, asked, want_processed=True)
    backwards = torch.arange(ROWS - 1, -1, -1)
    columns = [field.name for field in dataclasses.fields(asked) if field.name != "vocab_limit"]
    turned = dataclasses.replace(asked, **{name: getattr(asked, name)[backwards] for name in columns})
    wide = torch.full((ROWS, 5600), torch.nan)
    wide[:, 100:5100] = logits[backwards]
    for threads in (1, 2):
        with intraop_threads(threads):
            other = kernels.sample(wide[:, 100:5100], turned, want_processed=True)
        assert torch.equal(other.token_ids, together.token_ids[backwards])
        bits = other.processed_logprobs.view(torch.int32)
        assert torch.equal(bits, together.processed_logprobs.view(torch.int32)[backwards])


def test_logits_of_another_dtype_are_refused(kernels):
    with pytest.raises(KernelError, match="fp32"):
        kernels.sample(torch.zeros(ROWS, 8, dtype=torch.bfloat16), rules(0, limit=8), want_processed=False)
