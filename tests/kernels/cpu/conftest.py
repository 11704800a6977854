"""The C++ kernels, built once per test session at every register width this host runs, in a cache of their own."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from detharness.kernels.cpu import CppKernels
from detharness.kernels.cpu.build import VECTOR_BITS, BuildError, built_library, recipe
from detharness.kernels.cpu.library import open_library


@pytest.fixture(scope="session")
def kernels_by_width(tmp_path_factory):
    """Register width in bits -> kernels; the widest last."""
    recipes = {}
    for bits in VECTOR_BITS:
        try:
            recipes[bits] = recipe(bits)
        except BuildError as error:
            if "does not run" not in str(error):
                raise
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DETHARNESS_CACHE", str(tmp_path_factory.mktemp("cache")))
        with ThreadPoolExecutor() as pool:
            paths = list(pool.map(built_library, recipes.values()))
    return {bits: CppKernels(open_library(path)) for bits, path in zip(recipes, paths, strict=True)}


@pytest.fixture(scope="session")
def kernels(kernels_by_width):
    """The widest build: what ``load()`` gives."""
    return list(kernels_by_width.values())[-1]
