"""``assert_row_pure`` against one planted fault per axis: it names that axis alone, and what it prints shows it again.

The faults are importable, as a user's kernels are, so that each reproduction runs without a word added.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from detharness.errors import UsageError
from detharness.testing import Batch, BitsMovedError, Normal, NothingComparedError, assert_row_pure, every_batch

FAULTS = """
import itertools

import torch

calls = itertools.count()


def pure(x, scale):
    return x * scale + 1.0


def by_rows(x, scale):
    return pure(x, scale) * (1.0 if len(x) < 5 else 1 + 2**-20)


def by_slot(x, scale):
    return pure(x, scale) + (torch.arange(len(x)) == 6)[:, None] * 1e-3


def by_neighbours(x, scale):
    return pure(x, scale) * (1.0 if bool((x.abs() < 1e30).all()) else 1 + 2**-20)


def by_scale_of_the_batch(x, scale):
    return pure(x, scale) / x.abs().max()


def by_layout(x, scale):
    return pure(x, scale) + 1e-3 * (x.data_ptr() % 64 == 4)


def by_strides(x, scale):
    return pure(x, scale) + 1e-3 * (not x.is_contiguous())


def by_threads(x, scale):
    return pure(x, scale) * (1 + 2**-20 * (torch.get_num_threads() - 1))


def by_run(x, scale):
    return pure(x, scale) + next(calls) * 1e-3


def by_rows_on_threads(x, scale):
    return pure(x, scale) + 1e-3 * (len(x) > 4 and torch.get_num_threads() > 1)


def second_output_by_rows(x, scale):
    return pure(x, scale), pure(x, scale).bfloat16() * (1.0 if len(x) < 5 else 1.01)
"""
AXES = {
    "by_rows": ("rows",),
    "by_slot": ("slot",),
    "by_neighbours": ("neighbours",),
    "by_scale_of_the_batch": ("neighbours",),
    "by_layout": ("layout",),
    "by_strides": ("rows", "layout"),  # A single row is contiguous in any strides.
    "by_threads": ("threads",),
    "by_run": ("run to run",),
    "second_output_by_rows": ("rows",),
}
ROWS = {"x": Normal(6)}
SHARED = {"scale": 0.7}


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kernels")
    (folder / "planted_faults.py").write_text(FAULTS)
    sys.path.insert(0, str(folder))
    try:
        import planted_faults

        yield planted_faults
    finally:
        sys.path.remove(str(folder))
        del sys.modules["planted_faults"]


def failure(fn, **arguments):
    with pytest.raises(BitsMovedError) as caught:
        assert_row_pure(fn, **{"rows": ROWS, "shared": SHARED, **arguments})
    return caught.value


def test_a_pure_function_passes_and_the_rows_compared_are_counted(kernels):
    counted = assert_row_pure(kernels.pure, rows=ROWS, shared=SHARED, batches=[Batch(rows=5), Batch(rows=9, slot=3)])
    assert counted == 14
    assert assert_row_pure(kernels.pure, rows=ROWS, shared=SHARED) > 5000


@pytest.mark.parametrize("fault", AXES)
def test_a_planted_fault_is_named_by_its_axis(kernels, fault):
    assert failure(getattr(kernels, fault)).axes == AXES[fault]


def test_two_axes_that_move_a_row_only_together_are_both_named(kernels):
    found = failure(kernels.by_rows_on_threads, batches=[Batch(rows=9, threads=2, layout="apart", slot=3)])
    assert found.axes == ("rows", "threads")


def test_every_reproduction_shows_the_same_values_again(kernels, tmp_path):
    found = {name: failure(getattr(kernels, name)) for name in AXES if name != "by_run"}
    assert len(found) == 8
    for name, moved in found.items():
        (tmp_path / f"{name}.py").write_text(moved.reproduction)
    runner = (
        "import runpy, sys\n"
        "for path in sys.argv[1:]:\n"
        "    try:\n        runpy.run_path(path)\n"
        "    except AssertionError:\n        print('moved')\n"
    )
    paths = [str(tmp_path / f"{name}.py") for name in found]
    run = subprocess.run(
        [sys.executable, "-c", runner, *paths],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(Path(kernels.__file__).parent)},
        check=True,
    )
    shown = [f"{moved.difference.left} {moved.difference.right}\nmoved" for moved in found.values()]
    assert run.stdout == "\n".join(shown) + "\n"
    assert "detharness" not in "".join(moved.reproduction for moved in found.values())


def test_a_failure_carries_and_prints_what_moved(kernels):
    found = failure(kernels.by_rows, seed=7)
    assert (found.rows, found.row) == (5, 0), "the fewest rows that move it"
    scale, x = 0.7, Normal(6).tensor(seed=7000, rows=61)
    left, right = kernels.pure(x[:1], scale)[0, 0], kernels.by_rows(x[:5], scale)[0, 0]
    assert found.difference.element == (0,)
    assert found.difference.shape == (6,)
    assert float.fromhex(found.difference.left) == left.item()
    assert float.fromhex(found.difference.right) == right.item()
    assert found.difference.ulps == abs(left.view(torch.int32).item() - right.view(torch.int32).item()) > 0
    lines = str(found).splitlines()
    assert lines[0] == "by_rows, " + f"{kernels.__file__}:13: a row's bits change with the number of rows"
    for line in (
        "rows           5",
        "row            0",
        "axis           rows",
        "first element  [0] of [6], float32; 6 differ",
        f"left           {found.difference.left}  (slot 0 of 1 row, neighbours own, layout packed, 1 thread)",
        f"right          {found.difference.right}  (slot 0 of 5 rows, neighbours own, layout packed, 1 thread)",
        f"distance       {found.difference.ulps} ULP",
    ):
        assert line in lines
    assert str(found).endswith(found.reproduction)


def test_the_smallest_row_count_is_one_that_was_asked_for(kernels):
    assert failure(kernels.by_rows, batches=[Batch(rows=3), Batch(rows=64), Batch(rows=8)]).rows == 8


def test_a_kernel_that_takes_no_single_row_is_held_against_another_reference():
    counts = []

    def sixteens(x):
        assert len(x) % 16 == 0
        counts.append(len(x))
        return x * (2.0 if len(x) < 48 else 2.5)

    assert_row_pure(sixteens, rows=ROWS, reference=Batch(rows=16), batches=every_batch(rows=[16, 32]))
    assert set(counts) == {16, 32}
    with pytest.raises(BitsMovedError) as caught:
        assert_row_pure(sixteens, rows=ROWS, reference=Batch(rows=16), batches=every_batch(rows=[16, 32, 48, 64]))
    assert (caught.value.rows, caught.value.axes) == (48, ("rows",))


def test_a_kernel_may_refuse_what_nobody_asked_for():
    def distinct(x):
        assert len(x.unique(dim=0)) == len(x), "copies"
        return x * (1.0 if len(x) < 5 else 1.5)

    assert failure(distinct, shared=None, batches=[Batch(rows=6)]).axes == ("neighbours",)


def test_what_cannot_be_written_as_code_is_left_to_the_reader(capsys):
    given = {
        "x": torch.randn(16, 4),
        "ids": torch.arange(16),
        "few": torch.tensor([[0.1], [torch.inf], [-0.0]] * 6)[:16],
    }
    shared = {"scale": 0.1, "dtype": torch.bfloat16, "shape": [(4, None)], "table": torch.randn(99), "other": object()}

    def fault(x, ids, few, scale, dtype, shape, table, other):
        return x.to(dtype) * scale + (len(x) > 2) * ids[:, None] + few.isinf()

    code = failure(fault, rows=given, shared=shared).reproduction
    assert f"fn = ...  # yours: {fault.__qualname__}, {__file__}:" in code
    assert "'x': ...,  # yours: a tensor [16, 4], torch.float32" not in code, "short enough to be written out"
    assert "'table': ...,  # yours: a tensor [99], torch.float32" in code
    assert "'other': ...,  # yours: object" in code
    filled = code.replace("fn = ...", "fn = fault").replace("'table': ...", "'table': table")
    filled = filled.replace("'other': ...", "'other': None")
    x = given["x"].clone()
    values = {"fault": fault, "table": shared["table"]}
    with pytest.raises(AssertionError):
        exec(filled, values)
    assert torch.equal(values["rows"]["x"], x)
    assert torch.equal(values["rows"]["few"], given["few"])
    assert values["rows"]["few"][2].signbit()
    assert values["shared"]["shape"] == shared["shape"]
    left, right = capsys.readouterr().out.split()
    assert left != right


def test_an_output_buffer_that_is_used_again_is_read_before_the_next_call():
    buffer = torch.empty(129, 6)

    def into_buffer(x):
        return torch.mul(x, 3.0, out=buffer[: len(x)])

    assert assert_row_pure(into_buffer, rows=ROWS) > 0


def test_a_kernel_may_write_into_its_rows():
    assert assert_row_pure(lambda x: x.mul_(3.0), rows=ROWS) > 0


def test_the_sign_of_zero_is_a_bit():
    with pytest.raises(BitsMovedError) as caught:
        assert_row_pure(lambda x: torch.cat([x, x * 0.0 if len(x) < 9 else x.abs() * -0.0], 1), rows=ROWS)
    assert caught.value.difference.ulps == 1


def test_given_rows_and_shared_tensors_are_played_as_they_are():
    x, ids, table = torch.randn(10, 4), torch.arange(10) * 3, torch.randn(40, 4)
    seen = []

    def gather(x, ids, table):
        seen.extend(ids.tolist())
        return x + table[ids]

    assert assert_row_pure(gather, rows={"x": x, "ids": ids}, shared={"table": table}) > 0
    assert set(seen) == set(ids.tolist()), "integer rows of neighbours stay valid"


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.float8_e5m2])
def test_every_dtype_is_compared(dtype):
    def fault(x):
        return (x.float() * (1.0 if len(x) < 9 else 1.5)).to(dtype)

    assert assert_row_pure(lambda x: (x.float() * 1.5).to(dtype), rows={"x": Normal(6, dtype=dtype)}) > 0
    with pytest.raises(BitsMovedError) as caught:
        assert_row_pure(fault, rows={"x": Normal(6, dtype=dtype)})
    assert caught.value.difference.dtype == str(dtype).removeprefix("torch.")


def test_integers_and_truth_values_are_compared():
    with pytest.raises(BitsMovedError) as caught:
        assert_row_pure(lambda x: x.argmax(1) + 3 * (len(x) > 8), rows=ROWS)
    assert (caught.value.difference.ulps, caught.value.difference.element) == (3, ())
    with pytest.raises(BitsMovedError) as caught:
        assert_row_pure(lambda x: (x > 0) ^ (len(x) > 8), rows=ROWS)
    assert caught.value.difference.dtype == "bool"


@pytest.mark.parametrize(
    ("fn", "arguments"),
    [
        (lambda x: x * 2, {"batches": []}),
        (lambda x: x * 2, {"batches": [Batch()]}),
        (lambda x: x * 2, {"rows": {"x": torch.ones(0, 3)}}),
        (lambda x: x * 2, {"rows": {"x": torch.ones(1, 3)}}),
        (lambda x: x * 2, {"rows": {"x": torch.ones(9, 3)}}),
        (lambda x: x[:, :0], {}),
        (lambda x: x * 0.0 + 1.0, {"batches": every_batch(neighbours=())}),
        (lambda x: torch.full_like(x, torch.nan), {}),
        (lambda x: [], {}),
    ],
)
def test_comparing_nothing_fails(fn, arguments):
    with pytest.raises(NothingComparedError):
        assert_row_pure(fn, **{"rows": ROWS, **arguments})


@pytest.mark.parametrize(
    ("fn", "rows", "sentence"),
    [
        (lambda x: x.sum(), ROWS, "row per row"),
        (lambda x: x[:-1], ROWS, "row per row"),
        (lambda x: None, ROWS, "must return a tensor"),
        (lambda x: x.tolist(), ROWS, "must return a tensor"),
        (lambda x: x if len(x) < 5 else x.double(), ROWS, "another shape or dtype"),
        (lambda x: x, {}, "rows must name"),
        (lambda x, y: x, {"x": torch.ones(3, 2), "y": torch.ones(4, 2)}, "rows must name"),
    ],
)
def test_a_function_that_is_not_rowwise_is_told_so(fn, rows, sentence):
    with pytest.raises(UsageError, match=sentence):
        assert_row_pure(fn, rows=rows)


def test_what_the_function_raises_comes_through():
    with pytest.raises(ZeroDivisionError):
        assert_row_pure(lambda x: 1 / 0, rows=ROWS)


def test_threads_are_put_back():
    before = torch.get_num_threads()
    assert_row_pure(lambda x: x * 2, rows=ROWS)
    with pytest.raises(BitsMovedError):
        assert_row_pure(lambda x: x * torch.get_num_threads(), rows=ROWS)
    assert torch.get_num_threads() == before
