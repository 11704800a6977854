"""Draw a finished probe as one SVG: axes down, arms across, moved trials of all trials in each cell.

python examples/picture.py runs/probe-0001/report.json picture.svg
"""

from __future__ import annotations

import html
import json
import sys
from pathlib import Path
from typing import Any

ROW, HEAD, LABEL, CELL = 30, 76, 150, 168
STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1f2328; } .small { font-size: 11px; fill: #59636e; }
.head { font-weight: 600; } rect { rx: 5; }
.identical { fill: #d1f0d9; } .diverged { fill: #ffd6d2; } .not_tested { fill: #eceff2; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; } .small { fill: #9198a1; }
  .identical { fill: #14432a; } .diverged { fill: #6b1e1e; } .not_tested { fill: #262c34; }
}
"""


def cell(found: dict[str, Any]) -> tuple[str, str]:
    """(class, text) of one axis in one arm."""
    if found["status"] == "not_tested":
        return "not_tested", "not tested"
    texts = f", text in {found['diverged_tokens']}" if found["diverged_tokens"] else ""
    return found["status"], f"{found['diverged']} of {found['trials']} moved{texts}"


def picture(report: dict[str, Any]) -> str:
    """The SVG of a report."""
    arms, axes = report["arms"], list(report["axes"])
    width, height = LABEL + CELL * len(arms) + 10, HEAD + ROW * (len(axes) + 1) + 10
    summary = "; ".join(f"{arm['kernels']} {arm['dtype']}: {arm['verdict']}" for arm in arms)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img">',
        f"<title>{html.escape(f'Moved trials per axis and arm. {summary}')}</title><style>{STYLE}</style>",
        '<text class="head" x="10" y="24">Does other traffic move a reply at temperature 0?</text>',
    ]

    def put(column: int, row: int, kind: str, text: str) -> None:
        x, y = LABEL + CELL * column, HEAD + ROW * row
        parts.append(f'<rect class="{kind}" x="{x}" y="{y}" width="{CELL - 6}" height="{ROW - 5}"/>')
        parts.append(f'<text x="{x + 9}" y="{y + 17}">{html.escape(text)}</text>')

    for column, arm in enumerate(arms):
        x = LABEL + CELL * column
        parts.append(
            f'<text class="head" x="{x}" y="50">{html.escape(arm["kernels"])} {html.escape(arm["dtype"])}</text>'
        )
        parts.append(
            f'<text class="small" x="{x}" y="66">{html.escape(arm["role"])}, {html.escape(arm["backend"])}</text>'
        )
        for row, axis in enumerate(axes):
            put(column, row, *cell(arm["axes"][axis]))
        put(column, len(axes), arm["verdict"], arm["verdict"].replace("_", " "))
    for row, axis in enumerate([*axes, "verdict"]):
        parts.append(f'<text x="10" y="{HEAD + ROW * row + 17}">{html.escape(axis.replace("_", " "))}</text>')
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    source, target = sys.argv[1:]
    Path(target).write_text(picture(json.loads(Path(source).read_text())))
