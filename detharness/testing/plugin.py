"""The pytest plugin: a seed, the row counts worth testing, and reproductions that can be copied.

It loads in everybody's test run, so it imports pytest and what this project keeps free of torch and Hypothesis.
"""

from __future__ import annotations

from collections.abc import Generator

import pytest

from detharness.testing.batches import row_counts as counts_at_borders
from detharness.testing.failures import BitsMovedError


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --detharness-seed."""
    parser.getgroup("detharness", "bitwise row purity (detharness.testing)").addoption(
        "--detharness-seed", type=int, default=0, metavar="N", help="what the fixture detharness_seed gives (default 0)"
    )


def pytest_report_header(config: pytest.Config) -> str:
    """Name the seed."""
    return f"detharness: --detharness-seed={config.getoption('detharness_seed')}"


@pytest.fixture(scope="session")
def detharness_seed(pytestconfig: pytest.Config) -> int:
    """The seed of this run, for ``assert_row_pure(..., seed=detharness_seed)``: 0, or --detharness-seed."""
    seed: int = pytestconfig.getoption("detharness_seed")
    return seed


@pytest.fixture(scope="session")
def row_counts() -> tuple[int, ...]:
    """Row counts at which kernels change their way of working: powers of two, ±1, up to 129."""
    return counts_at_borders()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show a reproduction in a section of its own, without the margin that pytest writes before an error's lines."""
    report = yield
    if call.excinfo is not None:
        report.sections.extend(("detharness: reproduction", moved.reproduction) for moved in _moved(call.excinfo.value))
    return report


def _moved(error: BaseException) -> list[BitsMovedError]:
    """The failure, or those in a group of several."""
    if isinstance(error, BaseExceptionGroup):
        return [moved for inner in error.exceptions for moved in _moved(inner)]
    return [error] if isinstance(error, BitsMovedError) else []
