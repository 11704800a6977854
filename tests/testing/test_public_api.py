"""What ``detharness.testing`` offers: a short list, complete, documented, and loaded only when used."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import detharness.testing as public

ROOT = Path(__file__).parents[2]
SOURCE = ast.parse(Path(public.__file__).read_text())


def test_every_name_is_there_and_no_other():
    assert dir(public) == public.__all__ == sorted(public.__all__)
    for name in public.__all__:
        assert getattr(public, name).__name__.split(".")[-1] == name
    with pytest.raises(AttributeError, match="no attribute 'assert_close'"):
        _ = public.assert_close


def test_type_checkers_are_told_the_same_names():
    (block,) = [node for node in SOURCE.body if isinstance(node, ast.If)]
    told = {alias.name: node.module.split(".")[-1] for node in block.body for alias in node.names}
    assert told == public._HOMES
    assert {*told, "strategies"} == set(public.__all__)


def test_every_public_assertion_and_error_of_the_room_is_listed():
    defined = {
        node.name
        for path in Path(public.__file__).parent.glob("*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }
    wanted = {name for name in defined if name.startswith("assert_") or name.endswith("Error")}
    assert len(wanted) == 5
    assert wanted <= set(public.__all__)


def test_the_page_of_the_room_explains_every_name():
    page = (ROOT / "docs" / "testing.md").read_text()
    for name in public.__all__:
        assert f"`{name}" in page or f"{name}(" in page, name


def test_names_load_what_they_need_and_no_more():
    loads = {
        "import detharness.testing.plugin": [],
        "from detharness.testing import Batch, BitsMovedError, every_batch, row_counts, two_sided": [],
        "from detharness.testing import assert_row_pure": ["torch"],
        "from detharness.testing import strategies": ["torch", "hypothesis"],
    }
    shown = "print([name for name in ('torch', 'hypothesis') if name in sys.modules])"
    script = "\n".join(["import sys", *(f"{statement}\n{shown}" for statement in loads)])
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout == "".join(f"{loaded}\n" for loaded in loads.values())


def test_a_missing_hypothesis_is_said_in_a_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    monkeypatch.delitem(sys.modules, "detharness.testing.strategies", raising=False)
    monkeypatch.delattr(public, "strategies", raising=False)
    with pytest.raises(ModuleNotFoundError) as missing:
        _ = public.strategies
    assert str(missing.value) == ("detharness.testing.strategies needs Hypothesis: pip install 'detharness[testing]'")
    assert missing.value.name == "hypothesis"
    assert missing.value.__suppress_context__
