"""The engine of the scripted server: continuous batching in steps, so that who runs beside whom is a number it knows.

A step gives every running request one token; the number of them is the batch of that step.
"""

from __future__ import annotations

import hashlib
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal

import scripted_model as model

Ids = Literal["return_token_ids", "return_tokens", "return_tokens_as_token_ids", "return_meta_info", "entries"]


@dataclass(frozen=True, kw_only=True)
class Switches:
    """What the server can do, and what is wrong with it. As it stands: everything works, nothing moves."""

    apis: tuple[Literal["chat", "completions"], ...] = ("chat", "completions")
    """The APIs it offers.
    The other answers 404."""

    ids: Ids | None = "return_token_ids"
    """The field by which token ids are asked for; "entries": every logprob entry holds an ``id``, as llama.cpp's do.
    None: ids are never given, whatever is asked."""

    logprobs: bool = True
    """Whether logprobs are given when asked for.
    False: the field is taken in silence and the answer is null."""

    bytes: bool = True
    """Whether chat entries hold the token's ``bytes``.
    False: they are null, and a token that is no text shows replacement characters."""

    logprob_shown: Callable[[float], Any] = lambda value: value
    """What is shown in place of a logprob.
    ``lambda value: float("nan")`` makes JSON with NaN, as Python's json writes it."""

    usage: bool = True
    """Whether ``usage`` is given: in whole replies, and in streams that ask with ``stream_options``.
    False: never."""

    seed: Literal["honoured", "ignored"] = "honoured"
    """Whether equal seeds give equal draws at a temperature.
    "ignored", and without a seed: every request draws anew (from ``noise_seed`` and a count)."""

    greedy_draws: bool = False
    """Whether temperature 0 is quietly taken as 1.
    Then even greedy replies differ from run to run."""

    streaming: Literal["equal", "loses_a_token", "ignored"] = "equal"
    """Whether a stream holds what the whole reply holds; "loses_a_token": the third token never comes.
    "ignored": a stream is asked for and one whole reply comes."""

    tokens_per_chunk: int = 1
    """Tokens in one event of a stream.
    Beside them come a first event with the role alone and a last one with the finish_reason alone."""

    prefix_cache: bool = False
    """Whether full blocks of 16 prompt tokens are found again; the last prompt token never is.
    Nothing is ever evicted; ``ScriptedServer.flush`` forgets all."""

    cached_shown: Literal["usage", "timings"] | None = "usage"
    """Where cached tokens are told: ``usage.prompt_tokens_details.cached_tokens`` or ``timings.cache_n``.
    None: nowhere."""

    cache_salt: bool = True
    """Whether a ``cache_salt`` keeps requests of other salts apart in the prefix cache.
    False: the field is taken and has no effect."""

    warm_drift: float = 0.0
    """How far a found prefix moves every logit of the reply.
    1e-3 flips near ties, 5.0 flips anything, 1e-6 moves logprobs alone."""

    cobatch_drift: float = 0.0
    """How far company in the batch moves logits; sizes as for ``warm_drift``. The move depends on the batch's size.
    It is the fault that batch-variant kernels have."""

    cobatch_from: int = 2
    """The batch, this request included, from which ``cobatch_drift`` moves anything.
    Below it a request is computed as if alone."""

    noise_drift: float = 0.0
    """How far run-to-run noise moves logits, company or not; sizes as for ``warm_drift``.
    Which repetitions of a request it strikes is fixed by ``noise_seed``, and the request's own count alone."""

    noise_rate: float = 1.0
    """The share of requests that noise strikes.
    It is drawn for each repetition of a request."""

    noise_seed: int = 0
    """Seed of the noise and of unseeded draws.
    The same seed and the same order of equal requests give the same run."""

    tokenize: str | None = "/tokenize"
    """The path of its tokeniser, "/tokenize" or "/v1/tokenize".
    None: 404."""

    tokenize_by: Literal["prompt", "content"] = "prompt"
    """The field that its tokeniser reads: vLLM's or llama.cpp's.
    Without "prompt", vLLM answers 400; without "content", llama.cpp gives no tokens."""

    score: Literal["echo", "prompt_logprobs"] | None = "echo"
    """How text is scored: completions that echo, or vLLM's ``prompt_logprobs``.
    None: both fields are taken in silence."""

    begins_with: str | None = None
    """A special token that every scored prompt begins with, as "<s>" in many vocabularies.
    It stands in lists of tokens, and never in a text."""

    fingerprint: str | None = "fp-scripted"
    """The ``system_fingerprint`` of every reply.
    None: no such field."""

    owned_by: str = "scripted"
    """Who the model card says the server is.
    "vllm", "sglang" and "llamacpp" are known names."""

    refuses: frozenset[str] = frozenset()
    """Fields whose presence in a body is answered with 422.
    Strict servers refuse what they do not know."""

    key: str | None = None
    """The key that must come as a bearer token.
    Else 401."""

    busy_first: int = 0
    """So many requests are answered with 429 and ``Retry-After: 0`` before any is served.
    Each counts in ``turned_away``."""

    busy_above: int | None = None
    """429, with ``Retry-After: 0``, for each request that finds so many in flight already.
    None: all are served."""

    fault: Callable[[int], str | None] = lambda number: None
    """The nth generation request (from 0) -> a name in ``misbehaving_server.BEHAVIOURS`` that answers it instead.
    ``lambda number: "hangs-up" if number >= 5 else None`` dies in the middle of a run."""

    ends_after: int | None = None
    """Replies end by themselves once in so many tokens.
    None: only ``max_tokens`` and stop texts end them."""

    hostile: bool = False
    """Whether replies hold markup, terminal sequences and bidi controls.
    Escaped, they do nothing."""

    seconds_per_step: float = 0.0
    """How long a step takes: the delay per token.
    With it, requests that are sent together run together."""

    settle: float = 0.002
    """An idle engine starts when no request has arrived for so many seconds.
    So a burst is one batch from its first step."""

    slots: int = 4096
    """How many requests run at once.
    The others wait, and keep their connections."""


@dataclass(frozen=True)
class Emitted:
    """One token, its logprob, and the best at its place."""

    token: int
    logprob: float
    top: list[tuple[int, float]]
    batch: int


@dataclass
class Sequence:
    """One request as it runs. ``news`` gets every token and then None."""

    prompt: list[int]
    max_tokens: int
    temperature: float
    draw_seed: str
    stop: tuple[str, ...]
    ignore_end: bool
    drifts: list[tuple[str, float]]
    cached: int
    state: bytes
    tokens: list[Emitted] = field(default_factory=list)
    finish_reason: str | None = None
    news: queue.SimpleQueue[Emitted | None] = field(default_factory=queue.SimpleQueue)
    done: threading.Event = field(default_factory=threading.Event)

    @property
    def ids(self) -> list[int]:
        """What has been emitted, the end included."""
        return [one.token for one in self.tokens]

    @property
    def text(self) -> str:
        """The text so far, up to the first stop text."""
        text = model.decode(self.ids)
        return text[: min((at for stop in self.stop if (at := text.find(stop)) >= 0), default=len(text))]


class Engine(threading.Thread):
    """Runs until ``ends`` is set. Counters: steps, largest_batch, batches (size -> steps)."""

    def __init__(self, switches: Switches, ends: threading.Event) -> None:
        super().__init__(daemon=True)
        self.switches = switches
        self.ends = ends
        self.batches: Counter[int] = Counter()
        self._changed = threading.Condition()
        self._waiting: list[Sequence] = []
        self._running: list[Sequence] = []
        self._arrived = 0.0
        self._blocks: set[bytes] = set()
        self._seen: Counter[bytes] = Counter()

    @property
    def largest_batch(self) -> int:
        """The most requests that ever shared a step."""
        return max(self.batches, default=0)

    def flush(self) -> None:
        """Forget every cached prefix."""
        with self._changed:
            self._blocks.clear()

    def add(self, prompt: list[int], body: dict[str, Any]) -> Sequence:
        """Queue a request; its tokens come in ``news``, its end in ``done``."""
        switches = self.switches
        key = hashlib.blake2b(repr((prompt, body.get("temperature"), body.get("seed"))).encode()).digest()
        with self._changed:
            number = self._seen[key]
            self._seen[key] += 1
            cached = self._found(prompt, str(body.get("cache_salt", "")) if switches.cache_salt else "")
            drifts = [(f"warm/{cached}", switches.warm_drift)] if cached and switches.warm_drift else []
            noise = Random(f"{switches.noise_seed}/{key.hex()}/{number}")
            if switches.noise_drift and noise.random() < switches.noise_rate:
                drifts.append((f"noise/{noise.random()}", switches.noise_drift))
            seeded = body.get("seed") is not None and switches.seed == "honoured"
            stop = body.get("stop") or ()
            sequence = Sequence(
                prompt=prompt,
                max_tokens=int(body.get("max_tokens") or 16),
                temperature=float(body.get("temperature", 1.0)) or float(switches.greedy_draws),
                draw_seed=f"seed/{body['seed']}" if seeded else f"{switches.noise_seed}/{key.hex()}/{number}/draws",
                stop=(stop,) if isinstance(stop, str) else tuple(stop),
                ignore_end=bool(body.get("ignore_eos")),
                drifts=drifts,
                cached=cached,
                state=model.start(prompt),
            )
            self._waiting.append(sequence)
            self._arrived = time.monotonic()
            self._changed.notify()
        return sequence

    def run(self) -> None:
        """Step while there is something to run."""
        while not self.ends.is_set():
            with self._changed:
                if not self._running:
                    if not self._waiting:
                        self._changed.wait(0.05)
                        continue
                    if (left := self._arrived + self.switches.settle - time.monotonic()) > 0:
                        self._changed.wait(left)
                        continue
                free = self.switches.slots - len(self._running)
                self._running += self._waiting[:free]
                del self._waiting[:free]
            self._step()
            if self.switches.seconds_per_step:
                self.ends.wait(self.switches.seconds_per_step)

    def _step(self) -> None:
        batch = len(self._running)
        self.batches[batch] += 1
        for sequence in self._running:
            self._emit(sequence, batch)
        self._running = [sequence for sequence in self._running if sequence.finish_reason is None]

    def _emit(self, sequence: Sequence, batch: int) -> None:
        switches = self.switches
        drifts = list(sequence.drifts)
        if switches.cobatch_drift and batch >= switches.cobatch_from:
            drifts.append((f"batch/{batch}", switches.cobatch_drift))
        row = model.logprobs(
            sequence.state,
            (sequence.ids or sequence.prompt or [None])[-1],
            drifts,
            ends_after=None if sequence.ignore_end else switches.ends_after,
            hostile=switches.hostile,
        )
        token = model.draw(row, sequence.temperature, f"{sequence.draw_seed}/{len(sequence.tokens)}")
        one = Emitted(token, dict(row)[token], row, batch)
        sequence.state = model.advance(sequence.state, token)
        sequence.tokens.append(one)
        stopped = sequence.stop and any(stop in model.decode(sequence.ids) for stop in sequence.stop)
        if token == model.END or stopped:
            sequence.finish_reason = "stop"
        elif len(sequence.tokens) >= sequence.max_tokens:
            sequence.finish_reason = "length"
        sequence.news.put(one)
        if sequence.finish_reason is not None:
            sequence.news.put(None)
            sequence.done.set()

    def _found(self, prompt: list[int], salt: str) -> int:
        """Tokens of ``prompt`` that were cached; its blocks are from now on."""
        if not self.switches.prefix_cache:
            return 0
        cached, chain, whole = 0, salt.encode(), True
        for first in range(0, len(prompt) - 15, 16):
            chain = hashlib.blake2b(chain + repr(prompt[first : first + 16]).encode()).digest()
            whole = whole and chain in self._blocks
            cached += 16 * whole
            self._blocks.add(chain)
        return min(cached, (len(prompt) - 1) // 16 * 16)
