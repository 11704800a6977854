"""Values the engine does not support are refused by name, never dropped."""

import pytest

from detharness.engine.params import EngineConfig, FreePages, SamplingParams
from detharness.errors import RequestError, UsageError


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("temperature", -0.1, "between 0 and 100"),
        ("temperature", float("nan"), "finite"),
        ("temperature", "hot", "finite number"),
        ("temperature", True, "finite number"),
        ("top_p", 0.0, "above 0"),
        ("top_p", 1.5, "at most 1"),
        ("min_p", -0.5, "between 0 and 1"),
        ("top_k", -1, "between 0"),
        ("top_k", 1.5, "whole number"),
        ("top_k", 2**63, "between 0"),
        ("temperature", 10**400, "between 0 and 100"),
        ("seq_seed", -1, "between 0"),
        ("seq_seed", 2**63, "between 0"),
        ("n", 0, "between 1"),
        ("max_tokens", 0, "at least 1"),
        ("logprobs", -1, "between 0"),
        ("ignore_eos", 1, "true or false"),
        ("stop", ("",), "empty"),
        ("stop", 3, "list of str"),
        ("stop_token_ids", (-4,), "0 or more"),
        ("stop_token_ids", (True,), "list of int"),
        ("processed_logprobs", True, "ask for logprobs too"),
    ],
)
def test_a_bad_value_is_refused_with_its_name(field, value, words):
    with pytest.raises(RequestError, match=words) as caught:
        SamplingParams(**{field: value})
    assert field.split("_")[0] in str(caught.value)


def test_an_unknown_field_is_refused_and_the_known_ones_are_listed():
    with pytest.raises(RequestError, match=r"unsupported sampling field 'best_of'.*temperature"):
        SamplingParams.from_mapping({"best_of": 3})


def test_outside_data_is_laid_over_defaults():
    defaults = SamplingParams(max_tokens=48, temperature=0.5)
    params = SamplingParams.from_mapping({"temperature": 0, "stop": ["\n"]}, defaults)
    assert (params.max_tokens, params.temperature, params.stop) == (48, 0, ("\n",))


def test_a_single_stop_string_is_one_string():
    assert SamplingParams(stop="END").stop == ("END",)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("page_size", 0),
        ("num_blocks", -1),
        ("max_step_tokens", 2.5),
        ("threads", True),
        ("dtype", "fp8"),
        ("placement_seed", None),  # random.Random(None) would draw from the system.
        ("memory_policy", "reserve"),
        ("prefix_caching", True),
        ("page_placement", FreePages.NAN),
        ("free_pages", "nan"),
    ],
)
def test_a_bad_engine_setting_is_refused_with_its_name(field, value):
    with pytest.raises(UsageError, match=field):
        EngineConfig(**{field: value})


def test_the_record_of_a_configuration_is_plain_data():
    record = EngineConfig(num_blocks=4).as_record()
    assert record["memory_policy"] == "recompute"
    assert record["num_blocks"] == 4
