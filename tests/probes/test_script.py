import pytest

from detharness.errors import UsageError
from detharness.probes.bench import Bench
from detharness.probes.scenario import Probe
from detharness.probes.traffic.script import read_script, tokenize_script
from detharness.targets.protocol import EngineConfig, SamplingParams

PROBES = tuple(Probe(name, (1, 2, 3), SamplingParams(max_tokens=6, seq_seed=1)) for name in ("a", "b"))
BENCH = Bench(PROBES, 101, EngineConfig(), 0, capture_logits=True)


def traffic_of(path, target):
    rows = read_script(path, ["a", "b"])
    return tokenize_script(rows, target, SamplingParams(max_tokens=4), seed=0).traffic(BENCH)


def test_a_script_is_played_in_order_of_step_then_of_file(tmp_path, mini_target):
    path = tmp_path / "s.jsonl"
    path.write_text(
        '{"step": 4, "probe": "b"}\n'
        '{"token_ids": [7, 8], "max_tokens": 3, "temperature": 0.5}\n'
        '{"probe": "a", "cancel_step": 2}\n'
        '{"step": 9, "probe": "b"}\n'
    )
    traffic = traffic_of(path, mini_target())
    assert [(a.step, a.request_id, a.cancel_step) for a in traffic.arrivals] == [
        (0, "~load-1", None),
        (0, "a", 2),
        (4, "b", None),
        (9, "b~1", None),
    ]
    load = traffic.arrivals[0]
    assert (load.token_ids, load.sampling.max_tokens, load.sampling.temperature) == ((7, 8), 3, 0.5)
    assert traffic.watched == {"a": "a", "b": "b", "b~1": "b"}


def test_a_script_of_load_alone_is_met_by_every_probe_at_step_0(tmp_path, mini_target):
    path = tmp_path / "s.json"
    path.write_text('[{"prompt": "load", "step": 0}, {"token_ids": [5], "step": 2}]')
    traffic = traffic_of(path, mini_target())
    assert [a.request_id for a in traffic.arrivals] == ["a", "b", "~load-0", "~load-1"]
    assert traffic.watched == {"a": "a", "b": "b"}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("s.jsonl", '{"probe": "a"}\n{"probe": "z"}\n', r"s\.jsonl, line 2: no prompt has the id 'z': known are a, b"),
        ("s.jsonl", '{"probe": "a", "step": -1}\n', "line 1: step must be a whole number from 0 to 100000, got -1"),
        ("s.jsonl", '{"probe": "a", "step": null}\n', "line 1: step must be a whole number"),
        ("s.jsonl", '{"probe": "a", "step": 3, "cancel_step": 3}\n', "line 1: cancel_step must come after step 3"),
        ("s.jsonl", '{"probe": "a", "max_tokens": 3}\n', "a probe row takes step and cancel_step only"),
        ("s.jsonl", '{"step": 1}\n', "line 1: give exactly one of"),
        ("s.jsonl", '{"prompt": "x", "arrival": 1}\n', "line 1: unknown field 'arrival'"),
        ("s.jsonl", "nonsense\n", "line 1: not valid JSON"),
        ("s.jsonl", "", "holds no request"),
        ("s.json", '{"prompt": "x"}', "a JSON script must be a list of objects"),
        ("s.json", '[{"prompt": "x"}, {"prompt": ""}]', "entry 2: the prompt is empty"),
    ],
)
def test_a_bad_script_names_file_and_line(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(UsageError, match=message):
        read_script(path, ["a", "b"])


def test_load_that_does_not_fit_the_context(tmp_path, mini_target):
    path = tmp_path / "s.jsonl"
    path.write_text('{"prompt": "abc", "max_tokens": 998}\n')
    with pytest.raises(UsageError, match="line 1: 3 prompt tokens and a reply of 998 do not fit"):
        traffic_of(path, mini_target())
