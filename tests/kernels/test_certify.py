"""Certificates: row-pure sets pass, the library moves, planted faults are caught by name, what is kept is checked."""

import dataclasses
import json

import pytest
import torch

from detharness.errors import BackendWarning, KernelError
from detharness.kernels.certify import certificate as module
from detharness.kernels.certify import certify, require_certificate
from detharness.kernels.certify.operators import row_operators
from detharness.kernels.certify.paged import SHAPES, PagedProbe
from detharness.kernels.certify.step import probe_step
from detharness.kernels.contract import kernel_set
from detharness.kernels.cpu import CppKernels
from detharness.kernels.library import LibraryKernels

THREADS = (1, 2)


@pytest.fixture
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("DETHARNESS_CACHE", str(tmp_path))
    monkeypatch.setattr(module, "_IN_PROCESS", {})
    return tmp_path / "certificates"


@pytest.fixture(scope="module")
def cpp():
    return kernel_set("invariant", "cpp")


def failures(kernels, name):
    """Findings of the probes whose operator starts with ``name``, where a row moved."""
    probes = [operator for operator in row_operators(kernels) if operator.name.startswith(name)]
    found = [operator.probe(THREADS) for operator in probes]
    found += [
        PagedProbe(kernels, shape, torch.float32, "fp32").find(THREADS) for shape in SHAPES if name == "attention"
    ]
    assert found
    assert all(finding.cases for finding in found)
    return [finding for finding in found if finding.failure is not None]


def test_the_invariant_sets_pass_whole(backend):
    found = certify(kernel_set("invariant", backend))
    assert found.status == "passed"
    assert {finding.operator.split()[0] for finding in found.findings} == {
        *("linear", "embedding", "rms_norm", "add_rms_norm", "rope", "silu_and_mul", "log_softmax", "sample"),
        "attention",
        *(("step",) if backend == "cpp" else ()),
    }
    assert all(finding.cases >= 30 for finding in found.findings)


def test_the_library_moves_where_it_is_known_to_move():
    assert failures(LibraryKernels(), "linear fp32 576")
    assert failures(LibraryKernels(), "attention")


class Faulty(CppKernels):
    """The C++ kernels with one fault, given as a wrapper of one operator."""

    def __init__(self, healthy, operator, fault):
        super().__init__(healthy._library)
        healthy_call = getattr(self, operator)
        setattr(self, operator, lambda *arguments, **options: fault(healthy_call, *arguments, **options))


def nudged(x):
    return torch.nextafter(x, torch.full_like(x, torch.inf))


def special_for_one_row(call, x, packed):
    return nudged(call(x, packed)) if len(x) == 1 else call(x, packed)


def another_way_above_64_rows(call, x, packed):
    return nudged(call(x, packed)) if len(x) > 64 else call(x, packed)


def scale_of_the_batch(call, x, packed):
    scale = x.abs().max()
    return call(x / scale, packed) * scale


def last_slot_differs(call, x, packed):
    out = call(x, packed)
    out[-1] = nudged(out[-1]) if len(x) > 3 else out[-1]
    return out


def sum_per_thread(call, x, packed):
    return nudged(call(x, packed)) if torch.get_num_threads() == 2 else call(x, packed)


def nan_leaks(call, x, weight, eps):
    out = call(x, weight, eps)
    return out + 0 * x.sum() if x.isnan().any() else out


def odd_addresses_differ(call, x, weight, eps):
    return nudged(call(x, weight, eps)) if x.data_ptr() % 64 else call(x, weight, eps)


class Stale:
    """Adds what an earlier call left behind."""

    last = 0.0

    def __call__(self, call, gate_up):
        out = call(gate_up)
        left, self.last = self.last, float(out.isnan().any())
        return nudged(out) if left else out


def page_size_read(call, q, keys, values, batch, scale, window):
    out = call(q, keys, values, batch, scale, window)
    return nudged(out) if batch.page_size == 5 else out


def longest_context_read(call, q, keys, values, batch, scale, window):
    out = call(q, keys, values, batch, scale, window)
    return nudged(out) if int(batch.context_lens.max()) == 130 and len(batch.context_lens) > 1 else out


@pytest.mark.parametrize(
    ("operator", "fault"),
    [
        ("linear", special_for_one_row),
        ("linear", another_way_above_64_rows),
        ("linear", scale_of_the_batch),
        ("linear", last_slot_differs),
        ("linear", sum_per_thread),
        ("rms_norm", nan_leaks),
        ("rms_norm", odd_addresses_differ),
        ("silu_and_mul", Stale()),
        ("attention", page_size_read),
        ("attention", longest_context_read),
    ],
    ids=lambda value: value if isinstance(value, str) else getattr(value, "__name__", "stale"),
)
def test_a_planted_fault_is_caught_and_named(cpp, operator, fault):
    found = failures(Faulty(cpp, operator, fault), operator)
    assert found
    assert all(finding.operator.startswith(operator) for finding in found)


def test_a_read_behind_the_context_is_caught(cpp):
    def fault(call, q, keys, values, batch, scale, window):
        out = call(q, keys, values, batch, scale, window)
        return nudged(out) if bool((values.float() > 1e38).any()) else out

    found = failures(Faulty(cpp, "attention", fault), "attention")
    assert any("huge" in finding.failure for finding in found)


def test_a_step_that_differs_in_company_is_caught(cpp):
    class Step(CppKernels):
        def fuse(self, stack):
            forward = super().fuse(stack)

            def faulty(step, keys, values):
                logits = forward(step, keys, values)
                return nudged(logits) if len(step.batch.context_lens) == 4 else logits

            return faulty

    assert probe_step(cpp, torch.float32, "fp32", THREADS).failure is None
    finding = probe_step(Step(cpp._library), torch.float32, "fp32", THREADS)
    assert "as decodes beside prefill" in finding.failure
    assert probe_step(LibraryKernels(), torch.float32, "fp32", THREADS) is None


@pytest.fixture
def quick(monkeypatch):
    """One small probe in place of all, counted."""
    calls = []

    def probe(kernels, threads):
        calls.append(kernels.backend)
        return tuple(next(iter(row_operators(kernels))).probe(threads) for _ in range(1))

    monkeypatch.setattr(module, "probe", probe)
    return calls


def test_probed_once_and_kept(cpp, cache, quick, monkeypatch):
    first = certify(cpp)
    assert certify(cpp) == first
    monkeypatch.setattr(module, "_IN_PROCESS", {})  # Another process.
    assert certify(cpp) == first
    assert quick == ["cpp"]
    assert [path.stem for path in cache.iterdir()] == [first.key]
    assert certify(cpp, fresh=True).id == first.id
    assert quick == ["cpp"] * 2


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: text.replace('"cases":', '"cases":1', 1),
        lambda text: "[]",
        lambda text: "\x00\xff",
    ],
    ids=["cut", "changed", "other", "binary"],
)
def test_a_damaged_certificate_is_made_anew(cpp, cache, quick, monkeypatch, damage):
    first = certify(cpp)
    path = cache / f"{first.key}.json"
    path.write_text(damage(path.read_text()))
    monkeypatch.setattr(module, "_IN_PROCESS", {})
    assert certify(cpp) == first
    assert quick == ["cpp"] * 2
    assert json.loads(path.read_text())["certificate"]["key"] == first.key


def test_a_cache_that_cannot_be_written_costs_the_probes_and_says_so(cpp, cache, quick):
    cache.parent.joinpath("certificates").write_text("a file")
    found = certify(cpp)
    assert found.status == "passed"
    assert "was not kept" in found.note


def test_the_key_knows_what_the_bits_depend_on(cpp, cache, monkeypatch):
    key = module.certificate_key(cpp, (1, 2))
    assert module.certificate_key(cpp, (1,)) != key
    assert module.certificate_key(LibraryKernels(), (1, 2)) != key
    for name, value in (("cpu", {"model": "another"}), ("packages", {"torch": "9"}), ("variables", {"MKL_CBWR": "1"})):
        real = module.environment_fingerprint()
        with monkeypatch.context() as patch:
            patch.setattr(module, "environment_fingerprint", lambda real=real, n=name, v=value: {**real, n: v})
            assert module.certificate_key(cpp, (1, 2)) != key
    monkeypatch.setattr(type(cpp), "identity", lambda self: "another build")
    assert module.certificate_key(cpp, (1, 2)) != key


def test_a_failed_certificate_is_an_error_when_strict_and_a_warning_else(cpp, cache):
    moved = module.Finding("linear fp32 576x96", 4, "2 rows, 1 threads: the row in slot 0 differs")
    threads = module._thread_counts()
    key = module.certificate_key(cpp, threads)
    module._IN_PROCESS[key] = module.Certificate("invariant", "cpp", key, threads, (moved,))
    with pytest.raises(KernelError, match=r"linear fp32 576x96, 2 rows.*detharness doctor"):
        require_certificate(cpp, strict=True)
    with pytest.warns(BackendWarning, match="fail their bit probe"):
        assert require_certificate(cpp, strict=False).status == "failed"


def test_the_id_is_of_the_content(cpp, cache, quick):
    found = certify(cpp)
    assert dataclasses.replace(found, note="elsewhere").id == found.id
    assert dataclasses.replace(found, threads=(1,)).id != found.id
