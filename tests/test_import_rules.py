"""Who may import whom: the table of docs/architecture.md, enforced over the source by its syntax trees.

A room that has no row here is an error: whoever adds one says what it may import. The checker itself is held
against planted violations, so a rule that stops biting fails a test.
"""

import ast
import graphlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = "detharness"
MAPPED = {room: f"{PACKAGE}.{room}" for room in ("kernels", "probes", "eval")}  # Top-level folders, installed below.

COMMON = frozenset({"errors", "records", "statistics", "rendering"})
MAY_IMPORT: dict[str, frozenset[str]] = {
    "errors": frozenset(),
    "records": frozenset({"errors"}),
    "statistics": frozenset({"errors"}),
    "rendering": frozenset({"errors"}),
    "kernels": frozenset({"errors", "records"}),
    "checkpoints": frozenset({"errors", "records"}),
    "engine": frozenset({"errors", "records", "checkpoints", "kernels"}),
    "targets": COMMON | {"engine", "checkpoints", "kernels.contract", "kernels.certify"},
    "probes": COMMON | {"targets", "kernels.contract"},
    "testing": COMMON | {"kernels.contract", "kernels.threads"},
    "eval": COMMON | {"targets"},
    "cli": COMMON | {"kernels", "checkpoints", "engine", "targets", "probes", "eval"},
}

# What these rooms may import while they themselves are being imported; anything else waits inside a function.
EAGER: dict[str, frozenset[str]] = {
    "targets": COMMON | {"engine.params", "engine.outputs", "kernels.contract"},
    "cli": frozenset({"errors"}),
}
# The engine as a target needs the engine at its top. So it is itself imported inside functions only.
BEHIND_A_FUNCTION = frozenset(
    {
        "targets.engine",
        "targets.engine_generation",
        "targets.transformers_model",
        "targets.transformers_generation",
        "targets.transformers_continuous",
        "targets.transformers_probe",
    }
)

NETWORK = "httpx"  # Only targets reach out; everything else works on what is here.

BARE = frozenset({"kernels", "probes", "eval"})  # Other packages bear these names.
SHAPELESS = frozenset({"utils", "util", "helpers", "helper", "common"})


@dataclass(frozen=True)
class Import:
    """One imported module name; ``eager`` when it runs while the importing module is being imported."""

    name: str
    line: int
    eager: bool


def imports_of(module: str, source: str, *, is_package: bool = False) -> list[Import]:
    """Every import of ``source``: statements, relative ones resolved, and ``import_module`` of a literal."""
    found: list[Import] = []

    def visit(node: ast.AST, eager: bool) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            eager = False
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            for child in node.body:
                visit(child, eager=False)
            for child in node.orelse:
                visit(child, eager)
            return
        for name in _names(node, module, is_package):
            found.append(Import(name, node.lineno, eager))  # type: ignore[attr-defined]
        for child in ast.iter_child_nodes(node):
            visit(child, eager)

    visit(ast.parse(source), eager=True)
    return found


def _names(node: ast.AST, module: str, is_package: bool) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            parents = module.split(".")[: len(module.split(".")) - node.level + is_package]
            base = ".".join([*parents, base] if base else parents)
        # ``from detharness.kernels import contract`` may name a module: the longer name decides the rule.
        yield from (f"{base}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in ("__import__", "import_module"):
        yield from (str(argument.value) for argument in node.args[:1] if isinstance(argument, ast.Constant))


def room_path(name: str) -> str | None:
    """``detharness.kernels.contract.x`` -> ``kernels.contract.x``; None for what is not ours or is the root."""
    head, _, rest = name.partition(".")
    return rest if head == PACKAGE and rest and not rest.startswith("__") else None


def covered(path: str, allowed: frozenset[str]) -> bool:
    """Whether ``path`` is one of ``allowed`` or lies below one."""
    return any(path == entry or path.startswith(f"{entry}.") for entry in allowed)


def violations(module: str, source: str, *, is_package: bool = False) -> list[str]:
    """The rules that ``module`` breaks, one sentence each."""
    broken = []
    own = room_path(module)
    if SHAPELESS & set(module.split(".")):
        broken.append(f"{module}: a module name must say what is in it")
    room = own.split(".")[0] if own else None
    if room is not None and room not in MAY_IMPORT:
        broken.append(f"{module}: the room {room!r} has no row in the import table")
        return broken
    for item in imports_of(module, source, is_package=is_package):
        at = f"{module}:{item.line}"
        if item.name.split(".")[0] in BARE:
            broken.append(f"{at}: imports a bare {item.name!r}")
        if item.name.split(".")[0] == NETWORK and room not in (None, "targets"):
            broken.append(f"{at}: {room} must not import {NETWORK}")
        path = room_path(item.name)
        if path is None or room is None or path.split(".")[0] == room:
            pass
        elif not covered(path, MAY_IMPORT[room]):
            broken.append(f"{at}: {room} must not import {path}")
        elif item.eager and room in EAGER and own not in BEHIND_A_FUNCTION and not covered(path, EAGER[room]):
            broken.append(f"{at}: {room} imports {path} outside a function")
        hidden = path is not None and covered(path, BEHIND_A_FUNCTION)
        if hidden and item.eager and own is not None and own not in BEHIND_A_FUNCTION:
            broken.append(f"{at}: {path} is imported outside a function")
    if module == PACKAGE:
        broken += [f"{module}: the package root imports {item.name}" for item in imports_of(module, source)]
    return broken


def sources() -> dict[str, Path]:
    """Every module that installs, by the name it installs under."""
    found = {}
    for folder, prefix in {PACKAGE: PACKAGE, **MAPPED}.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            found[".".join([prefix, *(part for part in parts if part != "__init__")])] = path
    return found


SOURCES = sources()


@pytest.mark.parametrize("module", SOURCES)
def test_the_import_table_holds(module):
    path = SOURCES[module]
    assert violations(module, path.read_text(), is_package=path.name == "__init__.py") == []


def test_the_sources_were_found():
    assert {"detharness", "detharness.errors", "detharness.kernels.contract", "detharness.probes"} <= set(SOURCES)


@pytest.mark.parametrize("folder", ["tests", "benchmarks", "examples"])
def test_nothing_beside_the_package_imports_a_bare_name_or_hides_in_a_shapeless_one(folder):
    for path in sorted((ROOT / folder).rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        assert violations(name, path.read_text()) == []


def room_graph(modules: dict[str, str]) -> dict[str, set[str]]:
    """Room -> rooms it imports, over the given module sources."""
    graph: dict[str, set[str]] = {}
    for module, source in modules.items():
        if own := room_path(module):
            room = own.split(".")[0]
            targets = {path.split(".")[0] for item in imports_of(module, source) if (path := room_path(item.name))}
            graph.setdefault(room, set()).update(targets - {room})
    return graph


def test_no_cycle_between_rooms():
    graph = room_graph({module: path.read_text() for module, path in SOURCES.items()})
    assert "kernels" in graph["engine"]  # The graph has edges, so an empty one cannot pass.
    graphlib.TopologicalSorter(graph).prepare()


def test_a_planted_cycle_is_caught():
    graph = room_graph(
        {
            "detharness.engine.a": "def f():\n    import detharness.targets.b",
            "detharness.targets.b": "from detharness.engine import a",
        }
    )
    with pytest.raises(graphlib.CycleError):
        graphlib.TopologicalSorter(graph).prepare()


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("detharness.records.x", "import detharness.statistics.counts"),
        ("detharness.statistics.x", "from detharness import records"),
        ("detharness.rendering.x", "from ..records import digests"),
        ("detharness.errors", "import detharness.records"),
        ("detharness.kernels.x", "from detharness.engine.params import EngineConfig"),
        ("detharness.kernels.x", "def f():\n    from detharness import probes"),
        ("detharness.checkpoints.x", "from detharness.kernels.contract import precision"),
        ("detharness.engine.x", "from detharness.targets.protocol import Arrival"),
        ("detharness.engine.x", "import detharness.rendering.tables"),
        ("detharness.targets.x", "from detharness.engine.loop import Engine"),
        ("detharness.targets.x", "from detharness.engine import loop"),
        ("detharness.targets.x", "import detharness.engine"),
        ("detharness.targets.x", "class A:\n    import detharness.engine.loop"),
        ("detharness.targets.x", "from detharness.kernels import pytorch"),
        ("detharness.targets.x", "from detharness.targets.engine import EngineTarget"),
        ("detharness.targets.x", "from detharness.targets import engine"),
        ("detharness.targets.x", "from . import engine"),
        ("detharness.probes.x", "from detharness.targets.engine import EngineTarget"),
        ("detharness.probes.x", "from detharness.engine.params import SamplingParams"),
        ("detharness.probes.x", "def f():\n    import detharness.engine.loop"),
        ("detharness.probes.x", "from detharness.kernels.pytorch import RowPureKernels"),
        ("detharness.probes.x", "import importlib\nimportlib.import_module('detharness.engine.loop')"),
        ("detharness.probes.x", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import detharness.cli"),
        ("detharness.cli.x", "from detharness.probes import runner"),
        ("detharness.cli.x", "import detharness.records.run_folder"),
        ("detharness.cli.x", "try:\n    from detharness.targets import resolve\nexcept ImportError:\n    raise"),
        ("detharness.eval.x", "def f():\n    import httpx"),
        ("detharness.testing.x", "from detharness.kernels.pytorch import RowPureKernels"),
        ("detharness.probes.x", "from detharness.testing import assert_row_pure"),
        ("detharness.x.y", ""),
        ("detharness", "import detharness.errors"),
        ("detharness.engine.x", "import kernels.contract"),
        ("tests.engine.test_x", "from kernels import contract"),
        ("tests.x", "def f():\n    import eval"),
        ("benchmarks.x", "__import__('probes')"),
        ("detharness.engine.utils", ""),
        ("detharness.probes.common.x", ""),
        ("tests.helpers", ""),
    ],
)
def test_a_planted_violation_is_caught(module, source):
    assert len(violations(module, source)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("detharness.records.x", "import detharness\nfrom detharness.errors import UsageError"),
        ("detharness.records.x", "from detharness import __version__"),
        ("detharness.kernels.x", "from detharness.kernels.contract import KernelSet"),
        ("detharness.kernels.x", "from .contract import KernelSet"),
        ("detharness.targets.x", "from detharness.engine.params import EngineConfig"),
        ("detharness.targets.x", "def f():\n    from detharness.engine.loop import Engine"),
        ("detharness.targets.x", "def f():\n    from detharness.targets.engine import EngineTarget"),
        ("detharness.targets.engine", "from detharness.engine.loop import Engine"),
        ("detharness.targets.x", "import httpx"),
        ("detharness.probes.x", "from detharness.kernels import contract"),
        ("detharness.probes.x", "def f():\n    from detharness.targets.engine import EngineTarget"),
        ("detharness.cli.x", "from detharness.cli import exits\ndef f():\n    from detharness.probes import runner"),
        ("tests.engine.test_x", "from detharness.engine.loop import Engine"),
    ],
)
def test_what_the_table_allows_passes(module, source):
    assert violations(module, source) == []


HEAVY = ("torch", "transformers", "gguf", "tokenizers", "safetensors", "numpy")


def heavy_modules_after(statement: str) -> list[str]:
    """Which of the slow libraries are loaded in a fresh interpreter after ``statement``."""
    script = f"import sys\n{statement}\nprint([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return list(ast.literal_eval(run.stderr.splitlines()[-1]))


@pytest.mark.parametrize("arguments", [["--help"], ["probe", "--help"]])
def test_help_loads_no_torch_and_nothing_else_that_is_slow(arguments):
    call = (
        "from detharness.cli import main\n"
        f"sys.argv = {['detharness', *arguments]!r}\n"
        "try:\n    main()\n"
        "except SystemExit as end:\n    assert not end.code, end.code\n"
    )
    assert heavy_modules_after(call) == []


def test_a_heavy_module_would_be_seen():
    assert heavy_modules_after("import numpy") == ["numpy"]


def test_the_common_rooms_and_what_a_request_is_made_of_load_no_torch():
    pure = [name for name in SOURCES if (path := room_path(name)) and covered(path, COMMON)]
    pure += ["detharness.engine.params", "detharness.engine.outputs", "detharness.targets.protocol"]
    assert set(heavy_modules_after("\n".join(f"import {name}" for name in pure))) <= {"numpy"}
