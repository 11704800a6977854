"""Log-softmax over the vocabulary, fp32."""

from __future__ import annotations

import pytest
import torch

from detharness.kernels.reference.log_softmax import log_softmax as exact_log_softmax


def logits(vocab, rows=70, scale=5.0):
    x = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(vocab)) * scale
    x[rows // 2] += 1e4
    return x


@pytest.mark.parametrize("vocab", [1, 2, 7, 264, 1031])
def test_a_row_depends_on_itself_alone(ours, impurities, vocab):
    # Beside its input: over one id every row's output is 0, and rows could not be told apart.
    assert impurities(lambda x: torch.cat([ours.log_softmax(x), x], dim=1), logits(vocab)) == set()


@pytest.mark.parametrize("scale", [1.0, 10.0])
@pytest.mark.parametrize("vocab", [264, 49152, 152064])
def test_the_error_is_at_most_twice_the_librarys(ours, library, at_most_twice, vocab, scale):
    x = logits(vocab, rows=5, scale=scale)
    at_most_twice(ours.log_softmax(x), library.log_softmax(x), exact_log_softmax(x))


def test_masked_ids_get_minus_infinity_and_move_nothing(ours, same_bits):
    x = logits(300, rows=3)
    x[:, 100:250] = -torch.inf
    result = ours.log_softmax(x)
    assert torch.isneginf(result[:, 100:250]).all()
    x[:, 100:250] = -1e30  # As good as masked: exp is 0 too.
    assert same_bits(ours.log_softmax(x)[:, :100], result[:, :100])


def test_one_id_has_probability_one(ours):
    assert ours.log_softmax(torch.tensor([[3.5]])).tolist() == [[0.0]]
