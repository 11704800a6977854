"""End tokens: the union of all places, in a fixed order, with a record of who said what."""

from __future__ import annotations

from typing import Any

import pytest

from detharness.checkpoints.end_tokens import parse_end_tokens, unite_end_tokens
from detharness.errors import CheckpointError


@pytest.mark.parametrize(("value", "ids"), [(None, ()), (2, (2,)), ([5, 3], (5, 3)), ([], ()), (0, (0,))])
def test_every_spelling_is_read(value: Any, ids: tuple[int, ...]) -> None:
    assert parse_end_tokens(value, "config.json") == ids


@pytest.mark.parametrize("value", ["2", True, [1, None], 2.0, {"id": 2}])
def test_other_values_are_refused(value: Any) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json: eos_token_id"):
        parse_end_tokens(value, "config.json")


def test_union_keeps_every_id_and_says_that_the_places_disagree() -> None:
    ids, notes = unite_end_tokens(
        {"config.json": (151645,), "generation_config.json": (151645, 151643), "tokenizer": (151643,)}, 151936
    )
    assert ids == (151645, 151643)
    assert "config.json 151645; generation_config.json 151645, 151643; tokenizer 151643 (they disagree" in notes[0]


def test_agreement_in_another_order_is_agreement() -> None:
    ids, notes = unite_end_tokens({"config.json": (1, 2), "generation_config.json": (2, 1), "tokenizer": ()}, 10)
    assert ids == (1, 2)
    assert notes == ("end tokens: config.json 1, 2; generation_config.json 2, 1",)


def test_ids_that_can_never_be_produced_are_left_out_with_a_note() -> None:
    ids, notes = unite_end_tokens({"config.json": (-1, 2), "tokenizer": (10,)}, 10)
    assert ids == (2,)
    assert "outside the vocabulary are ignored: -1, 10" in notes[1]


def test_no_end_token_is_said() -> None:
    assert "no file names an end token" in unite_end_tokens({"config.json": ()}, 10)[1][0]
