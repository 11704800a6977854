"""A shrunken failure as a pytest file that stands by itself: it fails as long as traffic moves the reply.

The file holds token ids and settings, nothing of the machine it was found on: no path, no host. Text from outside
stands in it only as ASCII literals, and in comments, which end with their line.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any

from detharness.probes.causes.failure import Play, Side
from detharness.probes.causes.shrink import Shrunk
from detharness.targets.protocol import Arrival

_NAME_LENGTH = 40


@dataclass(frozen=True)
class Subject:
    """What a failure was found on: ``target`` as it was named, without the folder it lay in."""

    target: str
    kernels: str
    dtype: str
    prompt: str
    axis: str | None
    level: str


def reproduction_name(subject: Subject, taken: Sequence[str]) -> str:
    """``reproduce_PROMPT_AXIS.py``, numbered where ``taken`` holds it already."""
    prompt = re.sub(r"[^A-Za-z0-9]+", "_", subject.prompt).strip("_")[:_NAME_LENGTH] or "prompt"
    stem = f"reproduce_{prompt}_{subject.axis or 'combined'}"
    number = 1
    while (name := f"{stem}.py" if number == 1 else f"{stem}_{number}.py") in taken:
        number += 1
    return name


def reproduction(found: Shrunk, subject: Subject) -> str:
    """The source of the file."""
    trial, reference = found.failure.trial, found.failure.reference
    one_play = trial.play == reference.play
    lines = [
        '"""A reply that depends on the traffic around it, as small as it could be made.',
        "",
        "Fails where the kernels let traffic move the reply, passes where they do not.",
        '"""',
        "",
        *_story(found, subject),
        "",
        "import os",
        "",
        "import numpy as np",
        "",
        f"from detharness.targets.protocol import {', '.join(_imports(trial.play, reference.play))}",
        "from detharness.targets.resolve import resolve_target",
        "",
        "# Where the model lies elsewhere: DETHARNESS_TARGET=engine:FOLDER",
        f'TARGET = os.environ.get("DETHARNESS_TARGET", {subject.target!a})',
        f'KERNELS = os.environ.get("DETHARNESS_KERNELS", {subject.kernels!a})',
        f"DTYPE = {subject.dtype!a}",
        "",
        *_play("TRIAL", trial.play, found.threads[1]),
        "",
        *(_ONE_PLAY if one_play else _play("REFERENCE", reference.play, found.threads[0])),
        "",
        *_TEST.splitlines(),
        f"    reference = reply(target, REFERENCE, REFERENCE_CONFIG, {_sample(reference)})",
        f"    trial = reply(target, TRIAL, TRIAL_CONFIG, {_sample(trial)})",
        *_COMPARE.splitlines(),
    ]
    return "\n".join(lines) + "\n"


_ONE_PLAY = ["REFERENCE, REFERENCE_CONFIG = TRIAL, TRIAL_CONFIG"]  # Two requests of one play are compared.

_TEST = '''
def reply(target, arrivals, config, request_id, sample):
    """What was drawn at each absolute position: the token, the bits of its logprob, and the bits of the logits."""
    done = target.play(arrivals, config).completions[request_id, sample]
    start = len(done.prompt_token_ids)
    rows = {}
    for index, token in enumerate(done.token_ids):
        logprob = np.float32(done.logprobs[index].logprob).view(np.int32)
        logits = None if done.logits is None else done.logits[index].view(np.int32)
        rows[start + index] = token, int(logprob), logits
    if done.finish_reason == "stop":
        rows[start + len(done.token_ids)] = "the reply has ended", None, None
    return rows


def test_the_reply_does_not_depend_on_its_traffic():
    target = resolve_target(TARGET, KERNELS, DTYPE)'''

_COMPARE = '''    compared = sorted(reference.keys() & trial.keys())
    assert compared, "no row of the two replies stands at one position"
    for position in compared:
        (token, logprob, logits), (other_token, other_logprob, other_logits) = reference[position], trial[position]
        if logits is not None and other_logits is not None:
            moved = int((logits != other_logits).sum())
            assert moved == 0, f"{moved} of {logits.size} logits moved at position {position}"
        assert other_token == token, f"another token at position {position}"
        assert other_logprob == logprob, f"the logprob of token {token} moved at position {position}"'''


def _sample(side: Side) -> str:
    return f"{side.sample[0]!a}, {side.sample[1]}"


def _story(found: Shrunk, subject: Subject) -> list[str]:
    """Comments: what it was found on, what arrives when, what was seen."""
    trial, reference = found.failure.trial, found.failure.reference
    axis = "several things at once" if subject.axis is None else f"axis {subject.axis}"
    comparison = found.comparison
    firsts = {
        "token": comparison.first_token,
        "chosen logprob": comparison.first_logprob,
        "logits": comparison.first_logits,
    }
    seen = [f"first {name} at index {first}" for name, first in firsts.items() if first is not None]
    ulp = "" if comparison.max_ulp is None else f"; largest distance of two logits: {comparison.max_ulp} ULP"
    expected, other = (list(reply.token_ids) for reply in found.replies)
    text = [
        f"Found by detharness probe --shrink: prompt {subject.prompt!a}, {axis}, level {subject.level!a},",
        f"{subject.kernels} kernels in {subject.dtype}. "
        + ("No single reduction is left that fails." if found.minimal else "The search ended before it was done."),
        "",
        "Trial:",
        *_arrivals(trial),
        "Reference:",
        *_arrivals(reference),
        "",
        f"Moved then: {', '.join(seen)}{ulp}.",
        *textwrap.wrap(f"Tokens compared: {expected} in the reference, {other} in the trial.", 112),
    ]
    return [f"# {line}".rstrip() for line in text]


def _arrivals(side: Side) -> list[str]:
    lines = []
    for a in side.play.arrivals:
        compared = ", compared" if a.request_id == side.sample[0] else ""
        ends = "" if a.cancel_step is None else f", cancelled before step {a.cancel_step}"
        lengths = f"prompt length {len(a.token_ids)}, reply length {a.sampling.max_tokens}"
        lines.append(f"  before step {a.step}: {a.request_id!a}, {lengths}{ends}{compared}")
    return lines


def _imports(*plays: Play) -> list[str]:
    """Names from the protocol that the literals use."""
    values = (getattr(play.config, field.name) for play in plays for field in fields(play.config))
    policies = {type(value).__name__ for value in values if isinstance(value, Enum)}
    used = {name for name in policies if any(f"{name}." in _call(play.config) for play in plays)}
    return sorted({"Arrival", "EngineConfig", "SamplingParams", *used})


def _play(name: str, play: Play, threads: int) -> list[str]:
    """The arrivals and the configuration, each field that is not its default; threads as they were, for bits' sake."""
    config = _call(play.config, dtype="DTYPE", threads=str(threads))
    return [f"{name} = [", *(line for a in play.arrivals for line in _arrival(a)), "]", f"{name}_CONFIG = {config}"]


def _arrival(arrival: Arrival) -> list[str]:
    tokens = textwrap.wrap(", ".join(map(str, arrival.token_ids)), 100, break_long_words=False)
    comma = "," if len(arrival.token_ids) == 1 else ""
    last = [f"capture_logits={arrival.capture_logits},"]
    if arrival.cancel_step is not None:
        last.insert(0, f"cancel_step={arrival.cancel_step},")
    body = [
        f"step={arrival.step},",
        f"request_id={arrival.request_id!a},",
        *(
            [f"token_ids=({tokens[0]}{comma}),"]
            if len(tokens) == 1
            else ["token_ids=(", *(f"    {t}" for t in tokens), "),"]
        ),
        f"sampling={_call(arrival.sampling)},",
        *last,
    ]
    return ["    Arrival(", *(f"        {line}" for line in body), "    ),"]


def _call(value: Any, **given: str) -> str:
    """``value`` as a call of its class with the fields that are not their defaults; ``given`` are expressions."""
    parts = dict(given)
    for field in fields(value):
        held = getattr(value, field.name)
        if field.name not in given and held != field.default:
            parts[field.name] = f"{type(held).__name__}.{held.name}" if isinstance(held, Enum) else ascii(held)
    return f"{type(value).__name__}({', '.join(f'{name}={text}' for name, text in parts.items())})"
