"""Where two replies part: exact where tokens are known, an honest interval where only bytes are."""

from __future__ import annotations

import pytest
import scripted_model as model
from hypothesis import given
from hypothesis import strategies as st

from detharness.probes.serving.comparison import compare
from detharness.probes.serving.position import by_tokenizer, parting, token_count, whole_text
from detharness.targets.serving import ServedReply, ServedToken

LEFT = model.encode(" which one you were all")
RIGHT = model.encode(" which one you had all her")


def reply(ids, *, show=("ids", "tokens"), logprobs=None, gap=1.0, **fields):
    tokens = tuple(
        ServedToken(
            model.decode([one]),
            raw=model.VOCABULARY[one],
            logprob=-0.5 if logprobs is None else logprobs[index],
            top=(("a", -0.5), ("b", -0.5 - gap)),
        )
        for index, one in enumerate(ids)
    )
    return ServedReply(
        text=model.decode(ids),
        token_ids=tuple(ids) if "ids" in show else None,
        tokens=tokens if "tokens" in show else None,
        completion_tokens=len(ids) if "count" in show else None,
        **fields,
    )


@pytest.mark.parametrize(("show", "method"), [(("ids",), "token ids"), (("tokens",), "logprob entries")])
def test_tokens_say_it_exactly(show, method):
    found = parting(reply(LEFT, show=show), reply(RIGHT, show=show))
    assert (found.index, found.interval, found.method, found.byte_offset) == (3, (3, 3), method, 15)


def test_ids_are_used_only_where_both_replies_have_them():
    found = parting(reply(LEFT), reply(RIGHT, show=("tokens",)))
    assert found.method == "logprob entries"
    assert parting(reply(LEFT), reply(RIGHT, show=())).method == "bytes"


def test_a_reply_that_ends_where_the_other_goes_on_parts_at_its_end():
    found = parting(reply(LEFT), reply(LEFT[:3]))
    assert (found.index, found.interval) == (3, (3, 3))
    assert parting(reply(LEFT, show=()), reply(LEFT[:3], show=())).byte_offset == len(model.decode(LEFT[:3]))


def test_other_tokens_that_spell_the_same_text_part_without_a_byte():
    spelled = list(b" which")
    assert model.decode(spelled) == model.decode(LEFT[:1])
    found = parting(reply(LEFT[:1]), reply(spelled))
    assert (found.index, found.byte_offset) == (0, None)


def test_equal_ids_with_other_text_still_part():
    found = parting(reply(LEFT), ServedReply(text="something else", token_ids=tuple(LEFT)))
    assert (found.method, found.byte_offset) == ("bytes", 0)


def test_two_characters_of_one_picture_differ_in_bytes_where_both_show_as_replacement():
    left = ServedReply(text="\ufffd", tokens=(ServedToken("\ufffd", raw=b"\xf0"),))
    right = ServedReply(text="\ufffd", tokens=(ServedToken("\ufffd", raw=b"\xf1"),))
    assert parting(left, right).method == "logprob entries"


def test_reasoning_is_part_of_what_is_compared():
    left, right = ServedReply(text="33", reasoning="Let me add."), ServedReply(text="33", reasoning="Let me see.")
    assert parting(left, right).byte_offset == len("Let me ")
    assert whole_text(left) == "Let me add.33"


PLAIN = st.lists(st.sampled_from([one for one in range(model.END) if model.VOCABULARY[one].isascii()]), max_size=12)


@given(PLAIN, PLAIN, PLAIN)
def test_the_interval_of_bytes_holds_the_token_of_the_first_other_byte(common, left, right):
    ids = common + left
    first, second = reply(ids, show=("count",)), reply(common + right, show=("count",))
    found = parting(first, second)
    if found is None:
        assert first.text == second.text
        return
    ends = [sum(len(model.VOCABULARY[one]) for one in ids[: index + 1]) for index in range(len(ids))]
    token = next((index for index, end in enumerate(ends) if end > found.byte_offset), len(ids))
    assert found.method == "bytes"
    assert found.interval[0] <= token <= found.interval[1]
    assert found.interval[0] <= found.index <= found.interval[1]


def test_a_tokenizer_gives_an_interval_that_ends_with_the_common_text():
    first, second = reply(LEFT, show=()), reply(RIGHT, show=())
    found = parting(first, second)
    common = first.text[: found.byte_offset]
    located = by_tokenizer(found, model.encode(common), LEFT, RIGHT, "server tokenizer")
    assert located.interval[0] <= 3 <= located.interval[1]
    assert (located.method, located.byte_offset) == ("server tokenizer", found.byte_offset)


def test_tokens_are_counted_by_the_best_that_there_is():
    assert token_count(reply(LEFT, show=("ids",))) == token_count(reply(LEFT, show=("tokens",))) == 5
    assert token_count(ServedReply(text="x" * 9, completion_tokens=2)) == 2
    assert token_count(ServedReply(text="x" * 9)) == 3


def test_logprobs_are_compared_before_the_parting_alone():
    left = reply(LEFT, logprobs=[-1.0, -2.0, -3.0, -4.0, -5.0])
    seen = compare(left, reply(RIGHT, logprobs=[-1.0, -2.5, -3.0, -9.0, -9.0, -9.0]), greedy=True)
    assert (seen.tokens, seen.parting.index, seen.first_logprob) == (4, 3, 1)
    assert (seen.max_gap, seen.median_gap) == (0.5, 0.0)


@pytest.mark.parametrize(("gap", "name"), [(0.0, "tie"), (0.2, "near_tie"), (0.8, "near_tie"), (3.0, "confident")])
def test_a_margin_is_judged_by_rounding_and_by_the_drift_that_was_seen(gap, name):
    # 0.8 is wider than rounding explains, and no wider than twice the drift of 0.5 before it.
    left = reply(LEFT, logprobs=[-1.0] * 5, gap=gap)
    right = reply(RIGHT, logprobs=[-1.0, -1.5, -1.0, -1.0, -1.0, -1.0])
    seen = compare(left, right, greedy=True)
    assert seen.divergence_class == name
    assert seen.margin == pytest.approx(gap)  # -0.5 - (-0.5 - gap) rounds.
    assert compare(left, right, greedy=False).divergence_class is None


def test_a_logprob_that_is_no_number_is_compared_with_nothing_and_said():
    left, right = reply(LEFT, logprobs=[-1.0, None, -1.0, -1.0, -1.0]), reply(LEFT, logprobs=[-1.0] * 5)
    seen = compare(left, right, greedy=True)
    assert (seen.first_logprob, seen.non_finite) == (None, True)
