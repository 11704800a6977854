"""What is sent together: plays as plain data, built from prompts and foreign text, fixed by the seed.

A play is requests and their pace. Probed prompts in it are watched: each reply is compared with the prompt's reference,
or with an earlier reply of the same play. The rest is load: foreign text of ragged lengths, never a copy of a prompt
except where a traffic is about copies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from detharness.probes.serving.arrivals import ScriptRow, poisson
from detharness.probes.serving.foreign_text import ForeignText
from detharness.probes.serving.prompts import Prompt, text_request
from detharness.targets.serving import Api, ServedRequest

Pace = Literal["one by one", "closed loop", "burst", "open loop"]

AXES = ("run_to_run", "co_batching", "prefix_cache")
SHARED_PREFIX = "shared-prefix"
_LONG = 300  # Characters: what is shorter fills no cache page in its first half.
_SHORT_REPLY = 8


@dataclass(frozen=True)
class Ask:
    """One request of a play. prompt: the probed prompt it asks, None for load. at: seconds after the play's start.

    label: its name within the play. against: the label of the reply it is compared with, which is None for the
    prompt's reference. salt: its group in the prefix cache, None for one of its own.
    """

    request: ServedRequest
    prompt: str | None = None
    at: float = 0.0
    label: str | None = None
    against: str | None = None
    salt: str | None = None


@dataclass(frozen=True)
class Play:
    """Requests at one pace. axis: what differs from the reference; None where it is more than one thing.

    limit: requests in flight at once; None for as many as arrive. role: what its watched replies are.
    """

    name: str
    role: Literal["warm-up", "solo", "loaded", "cache"]
    axis: str | None
    level: str
    pace: Pace
    asks: tuple[Ask, ...]
    limit: int | None = None

    def as_record(self) -> dict[str, Any]:
        """What is sent, in numbers."""
        return {
            "name": self.name,
            "axis": self.axis,
            "level": self.level,
            "pace": self.pace,
            "limit": self.limit,
            "requests": len(self.asks),
            "watched": sum(ask.prompt is not None for ask in self.asks),
        }


@dataclass(frozen=True)
class Workshop:
    """What plays are made of."""

    api: Api
    prompts: tuple[Prompt, ...]
    max_tokens: int
    seed: int
    nonce: str
    rate: float
    concurrency: tuple[int, ...]

    def foreign(self, label: str) -> ForeignText:
        """Text foreign to every prompt."""
        return ForeignText(self.seed, label, [prompt.text or "" for prompt in self.prompts])

    def load(self, text: ForeignText, count: int) -> list[Ask]:
        """Ragged load: prompts and replies of many lengths."""
        shortest = min(_SHORT_REPLY, self.max_tokens)
        limits = [text.random.randint(shortest, self.max_tokens) for _ in range(count)]
        pairs = zip(text.ragged(count), limits, strict=True)
        return [Ask(text_request(self.api, prompt, max_tokens=limit)) for prompt, limit in pairs]

    def watched(self) -> list[Ask]:
        """Every prompt once."""
        return [Ask(prompt.request, prompt.id) for prompt in self.prompts]


def warm_up(shop: Workshop) -> Play:
    """Two foreign texts, so that nothing measured is a first request; then each prompt, so that none is a first one."""
    asks = (*shop.load(shop.foreign("warm-up"), 2), *shop.watched())
    return Play("warm-up", "warm-up", None, "warm-up", "one by one", asks)


def solo(shop: Workshop, name: str, repeats: int) -> Play:
    """Each prompt alone, again and again."""
    return Play(name, "solo", "run_to_run", "alone", "one by one", tuple(shop.watched() * repeats))


def sweep(shop: Workshop, limit: int, number: int) -> Play:
    """A closed loop of ``limit`` workers over prompts and load in random order; load comes last, so no prompt does."""
    name = f"concurrency-{limit}/{number}"
    text = shop.foreign(name)
    load = shop.load(text, len(shop.prompts) + limit - 1)
    last = load[: limit - 1]
    mixed = shop.watched() + load[limit - 1 :]
    text.random.shuffle(mixed)
    return Play(name, "loaded", "co_batching", f"concurrency-{limit}", "closed loop", (*mixed, *last), limit)


def needle(shop: Workshop, number: int) -> Play:
    """One prompt in a random place of a burst of load, twice as wide as the widest concurrency."""
    name = f"needle/{number}"
    text = shop.foreign(name)
    load = shop.load(text, 2 * max(shop.concurrency) - 1)
    prompt = shop.prompts[number % len(shop.prompts)]
    load.insert(text.random.randint(0, len(load)), Ask(prompt.request, prompt.id))
    return Play(name, "loaded", "co_batching", "needle", "burst", tuple(load))


def open_loop(shop: Workshop, number: int) -> Play:
    """Poisson arrivals, a third of them prompts; whoever is slow is not waited for."""
    name = f"open-loop/{number}"
    text = shop.foreign(name)
    mixed = shop.watched() + shop.load(text, 2 * len(shop.prompts))
    text.random.shuffle(mixed)
    times = poisson(shop.rate, len(mixed), text.random)
    asks = tuple(replace(ask, at=at) for ask, at in zip(mixed, times, strict=True))
    return Play(name, "loaded", "co_batching", "open-loop", "open loop", asks)


def copies(shop: Workshop, number: int) -> Play:
    """A burst of copies of one prompt: the load of many published studies, and the only one that is not foreign."""
    prompt = shop.prompts[number % len(shop.prompts)]
    asks = (Ask(prompt.request, prompt.id),) * max(shop.concurrency)
    return Play(f"repeat/{number}", "loaded", "co_batching", "repeat", "burst", asks)


def shared_prefix(shop: Workshop, number: int) -> Play:
    """Long prompts in a burst beside load that begins as they do. Cache and company both differ: it blames no axis."""
    name = f"{SHARED_PREFIX}/{number}"
    text = shop.foreign(name)
    asks = []
    for prompt in long_prompts(shop.prompts):
        salt = f"{name}/{prompt.id}"
        asks.append(Ask(prompt.request, prompt.id, salt=salt))
        for _ in range(2):
            other = prompt.with_text(f"{first_half(prompt)} {text.text(30)}")
            asks.append(Ask(replace(other, max_tokens=text.random.randint(1, shop.max_tokens)), salt=salt))
    text.random.shuffle(asks)
    return Play(name, "loaded", None, SHARED_PREFIX, "burst", tuple(asks))


def cache_states(shop: Workshop, number: int) -> Play:
    """One long prompt behind prefixes that no cache holds: cold, then found in full; then found in part, and in full.

    Of the two prompts so made, each reply after a fuller hit is compared with the one before it.
    """
    long = long_prompts(shop.prompts)
    prompt = long[number % len(long)]
    name = f"cache/{number}"
    other = shop.foreign(name).text(30)
    fresh = f"Note {shop.nonce}-{number}"
    first = prompt.with_text(f"{fresh}-a. {prompt.text}")
    begun = prompt.with_text(f"{fresh}-b. {first_half(prompt)} {other}")
    second = prompt.with_text(f"{fresh}-b. {prompt.text}")
    asks = (
        Ask(first, prompt.id, label="cold"),
        Ask(first, prompt.id, label="full", against="cold"),
        Ask(begun, label="begun"),
        Ask(second, prompt.id, label="half"),
        Ask(second, prompt.id, label="partial", against="half"),
    )
    salted = tuple(replace(ask, salt=name) for ask in asks)
    return Play(name, "cache", "prefix_cache", "cached", "one by one", salted)


def scripted(shop: Workshop, rows: Sequence[ScriptRow], number: int) -> Play:
    """The arrivals of a script file."""
    requests = {prompt.id: prompt.request for prompt in shop.prompts}
    asks = []
    for row in rows:
        if row.probe is not None:
            asks.append(Ask(requests[row.probe], row.probe, at=row.at))
        elif row.load is not None:
            asks.append(Ask(_load_request(shop, *row.load, row.max_tokens), at=row.at))
    return Play(f"script/{number}", "loaded", "co_batching", "script", "open loop", tuple(asks))


def many_runs(shop: Workshop, runs: int, limit: int) -> Play:
    """One prompt ``runs`` times in a closed loop, with one foreign text for every four."""
    text = shop.foreign("runs")
    prompt = shop.prompts[0]
    mixed = [Ask(prompt.request, prompt.id)] * runs + shop.load(text, runs // 4 + limit - 1)
    last, mixed = mixed[-(limit - 1) :], mixed[: -(limit - 1)]
    text.random.shuffle(mixed)
    return Play("runs", "loaded", "co_batching", "runs", "closed loop", (*mixed, *last), limit)


TRAFFIC: Mapping[str, Callable[[Workshop, int], Play]] = {
    "needle": needle,
    "open-loop": open_loop,
    "repeat": copies,
    SHARED_PREFIX: shared_prefix,
}
"""Traffic that is one play a round; ``concurrency`` is one for every number in flight."""


def long_prompts(prompts: Sequence[Prompt]) -> list[Prompt]:
    """Prompts whose first half fills a cache page."""
    return [prompt for prompt in prompts if prompt.text is not None and len(prompt.text) >= _LONG]


def first_half(prompt: Prompt) -> str:
    """The first half of a prompt's words."""
    words = (prompt.text or "").split()
    return " ".join(words[: len(words) // 2])


def _load_request(shop: Workshop, kind: str, value: Any, max_tokens: int | None) -> ServedRequest:
    limit = shop.max_tokens if max_tokens is None else max_tokens
    if kind == "prompt":
        return text_request(shop.api, value, max_tokens=limit)
    if kind == "messages":
        return ServedRequest(messages=value, max_tokens=limit)
    return ServedRequest(token_ids=tuple(value), max_tokens=limit)
