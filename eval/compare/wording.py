"""What compare.json says, in sentences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from detharness.eval.compare.levels import LEVELS

_VERDICTS = {
    "same": "Same outputs: every cell that one run answered, the other answered the same.",
    "logprobs_moved": "Same outputs, but logprob bits moved: the arithmetic is not the same, and no token shows it.",
    "cells_differ": "Same outputs where both runs answered; they did not answer the same cells.",
    "score_equal_outputs_moved": "Equal scores, moved outputs: Pass@1 is the same, what was answered is not.",
    "score_moved": "Moved outputs, and the scores differ.",
    "outputs_moved": "Moved outputs; no cell was graded in both runs, so nothing can be said of the scores.",
}

_LEVEL_NAMES = {
    "logprob_bits": "same logprob bits",
    "tokens": "same tokens",
    "text": "same text",
    "answer": "same answer",
    "verdict": "same verdict",
}

CAUSE_NAMES = {
    "data_row": "data row",
    "prompt": "prompt or template",
    "target": "target",
    "parameters": "parameters or seed",
    "output": "same request, different output",
    "grader": "grader or judge",
    "coverage": "coverage",
}


def sentences(report: Mapping[str, Any]) -> list[str]:
    """The findings of a comparison, the verdict first."""
    said = [_VERDICTS[report["verdict"]], _readings(report), *_coverage(report)]
    score = report["score"]
    if score is not None:
        said += _score(report, score)
    logprobs = report["levels"]["logprob_bits"]
    if logprobs["different"] and report["verdict"] != "logprobs_moved":
        said.append(f"Logprob bits differ in {logprobs['different']} of the cells where both runs tell them.")
    if not report["graders_comparable"]:
        said.append(
            "The runs were graded by different rules: their verdicts are not comparable; grade them alike first."
        )
    said += [
        f"Run {name.upper()} held no grade; it was graded for this comparison, by the strict rules."
        for name, run in sorted(report["runs"].items())
        if run["grade"] == "made_now"
    ]
    return [*said, _null_control(report["null_control"]), *_rows(report)]


def level_rows(report: Mapping[str, Any]) -> list[tuple[str, int, int, int]]:
    """(level, same, different, unknown), the strictest first."""
    counts = report["levels"]
    return [
        (_LEVEL_NAMES[level], *(counts[level][word] for word in ("same", "different", "unknown"))) for level in LEVELS
    ]


def part_rows(score: Mapping[str, Any]) -> list[tuple[str, str, int, int]]:
    """(cause, what it adds in points, cells gained, cells lost), and the sum."""
    rows = [
        (name, points(part["difference"]), part["gained"], part["lost"])
        for cause, name in CAUSE_NAMES.items()
        for part in (score["parts"][cause],)
    ]
    gained, lost = sum(row[2] for row in rows), sum(row[3] for row in rows)
    return [*rows, ("difference of Pass@1, B - A", points(score["difference"]), gained, lost)]


def points(number: Mapping[str, Any]) -> str:
    """A difference of shares in points of a hundred, with its sign."""
    return f"{100 * number['value']:+.3f}"


def _readings(report: Mapping[str, Any]) -> str:
    levels, cells = report["levels"], report["cells"]["common"]
    text, answer = levels["text"], levels["answer"]
    unknown = f" ({answer['unknown']} unknown)" if answer["unknown"] else ""
    return (
        f"By raw text {text['same']} of {cells} cells are the same; by extracted answer {answer['same']} are{unknown}."
    )


def _coverage(report: Mapping[str, Any]) -> list[str]:
    cells = report["cells"]
    if not cells["only_a"] and not cells["only_b"]:
        return []
    return [f"{cells['only_a']} cells are in A alone and {cells['only_b']} in B alone."]


def _score(report: Mapping[str, Any], score: Mapping[str, Any]) -> list[str]:
    a, b = (score["pass_at_1"][name]["value"] for name in "ab")
    over = "" if score["basis"] == "complete" else f" over the {score['cells']} cells that both runs graded"
    said = [f"Pass@1{over}: A {a:.4f}, B {b:.4f}, difference {points(score['difference'])} points."]
    test = score["test"]
    how = "exact" if test["exact"] else f"{test['draws']} draws"
    odds = f"paired sign-flip test over {score['tasks']} tasks: p = {test['p_value']:.4g}, {how}"
    if not score["difference"]["value"]:
        said.append(f"There is no difference of the scores for sampling noise to explain ({odds}).")
    elif test["chance_suffices"]:
        said.append(f"Sampling noise alone could explain a difference of this size ({odds}).")
    else:
        said.append(f"Sampling noise alone does not explain the difference ({odds}).")
    if moved := report["causes"].get("output"):
        said.append(
            f"In {moved} cells the request was the same, seed included, and the output was not: "
            "that is nondeterminism of the target, not sampling noise."
        )
    effect = score["smallest_detectable_effect"]
    parts = [f"{100 * effect['one_cell']['value']:.3f} points where requests are equal (one cell)"]
    if effect["paired"] is not None:
        parts.append(f"{100 * effect['paired']:.2f} points by the spread of the paired tasks")
    if effect["independent_runs"] is not None:
        parts.append(f"{100 * effect['independent_runs']:.2f} points between two runs that sample anew")
    return [*said, f"Smallest detectable effect: {', '.join(parts)}."]


def _null_control(control: Mapping[str, Any]) -> str:
    if control["holds"] is None:
        return f"Null control not made: {control['reason']}."
    if control["holds"]:
        return f"Null control: A graded again gives the same {control['cells']} verdicts and a difference of 0."
    return (
        f"Null control FAILED: A graded again gives other verdicts in {len(control['verdicts_moved'])} of "
        f"{control['cells']} cells: the grade in the folder is not by these rules; run eval grade again."
    )


def _rows(report: Mapping[str, Any]) -> list[str]:
    rows = {name: run["rows_per_step"] for name, run in sorted(report["runs"].items())}
    if None in rows.values():
        return []
    shown = "; ".join(
        f"{name.upper()} {row['min']} to {row['max']}, mean {row['mean']:.2f}" for name, row in rows.items()
    )
    said = f"Rows per step: {shown}."
    if all(row["max"] == 1 for row in rows.values()):
        said += " Every step had one row: that batching moves nothing was not tested."
    return [said]
