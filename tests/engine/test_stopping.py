"""When a reply ends, token by token: stop strings against what the detokenizer holds back."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detharness.checkpoints.detokenize import IncrementalDetokenizer
from detharness.engine.params import SamplingParams
from detharness.engine.sequence import Request, Sequence
from detharness.engine.stopping import advance

END = 256


@pytest.fixture(scope="module")
def tokenizer(tiny_target):
    return tiny_target("llama", "invariant", "fp32").checkpoint.tokenizer


def reply(tokenizer, tokens, **sampling) -> tuple[Sequence, str]:
    """Feed ``tokens`` until the reply ends; the sequence and the text that was streamed."""
    params = SamplingParams(max_tokens=len(tokens), **sampling)
    detokenizer = IncrementalDetokenizer(tokenizer)
    sequence = Sequence(Request("r", (1,), params), 0, 0, 0, detokenizer, [1])
    shown = ""
    for token in tokens:
        shown += advance(sequence, token, frozenset({END}), 512)
        if sequence.finish_reason is not None:
            break
    return sequence, shown


@pytest.mark.parametrize("last", [(), (END,)])
def test_a_stop_string_that_comes_out_with_the_end_is_cut(tokenizer, last):
    half = tokenizer.encode("é")[0]
    sequence, shown = reply(tokenizer, (*tokenizer.encode("ab"), half, *last), stop=("b\ufffd",))
    assert (sequence.text, shown) == ("a", "a")
    assert (sequence.finish_reason, sequence.stop_reason) == ("stop", "b\ufffd")


@settings(max_examples=300, derandomize=True, deadline=None)
@given(
    pieces=st.lists(st.sampled_from(["a", "b", "é", "漢", "😀", "half", "end"]), min_size=1, max_size=12),
    stops=st.lists(st.text("abé漢", min_size=1, max_size=4), max_size=3),
    ignore_eos=st.booleans(),
)
def test_the_text_ends_at_the_first_stop_string_and_nothing_beyond_is_streamed(tokenizer, pieces, stops, ignore_eos):
    odd = {"half": (tokenizer.encode("漢")[0],), "end": (END,)}
    tokens = [token for piece in pieces for token in odd.get(piece) or tokenizer.encode(piece)]
    sequence, shown = reply(tokenizer, tokens, stop=tuple(stops), ignore_eos=ignore_eos)
    whole = tokenizer.decode(sequence.tokens[1:])
    starts = [whole.find(stop) for stop in stops if stop in whole]
    assert sequence.text == (whole[: min(starts)] if starts else whole)
    assert shown == sequence.text
    assert isinstance(sequence.stop_reason, str) == bool(starts)
