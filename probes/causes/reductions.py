"""Ways to make a failing comparison smaller. Every play of it is changed alike, so what is compared stays what it was.

Each works on a search, which tests candidates and goes on from the last one that still failed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any, Protocol

from detharness.probes.bench import room_for
from detharness.probes.causes.ddmin import ddmin, least
from detharness.probes.causes.failure import Failure, Play
from detharness.targets.protocol import Arrival, EngineConfig, SamplingParams


class Search(Protocol):
    """The failure held, the first index of its reply that moves, and the test of a candidate, kept where it fails."""

    @property
    def held(self) -> Failure:
        """The smallest failure so far."""

    @property
    def first_moved(self) -> int:
        """Index in the compared replies at which the held failure moves first."""

    def fails(self, candidate: Failure) -> bool:
        """Whether ``candidate`` fails too; then it is held from now on."""


def cut_the_reply(search: Search) -> None:
    """The compared reply ends where it first moves; then every length down to the least."""
    watched = search.held.watched
    longest = max(side.request.sampling.max_tokens for side in (search.held.trial, search.held.reference))
    moved_at = search.first_moved + 1
    if moved_at < longest:
        search.fails(search.held.each_request(watched, lambda a: _reply(a, moved_at)))
    _least(search, watched, 1, lambda a: a.sampling.max_tokens, _reply)


def drop_neighbours(search: Search) -> None:
    """As few neighbours as do it."""
    start = search.held

    def only(kept: tuple[str, ...]) -> Failure:
        names = (*start.watched, *kept)
        return start.each(lambda play: replace(play, arrivals=tuple(a for a in play.arrivals if a.request_id in names)))

    ddmin(start.neighbours, lambda kept: search.fails(only(tuple(kept))))


def plain_configuration(search: Search) -> None:
    """Settings as the reference has them, then, where both agree, their defaults; pools and budgets with just room."""
    for field in fields(EngineConfig):
        if field.name != "dtype":
            candidate = _plainer(search.held, field.name, field.default)
            if candidate != search.held:
                search.fails(candidate)


def tighter_limits(search: Search) -> None:
    """Step budgets and pools that have to be tight as tight as can be: less traffic then fills them."""
    for name in _room(search.held.trial.play):
        limit = getattr(search.held.trial.play.config, name)
        if limit is not None and limit < _room(search.held.trial.play)[name]:
            _least_limit(search, name, limit)


def _least_limit(search: Search, name: str, limit: int) -> None:
    start = search.held

    def limited(value: int) -> Failure:
        return start.each(lambda play: _with(play, {name: value}) if getattr(play.config, name) == limit else play)

    least(1, limit, lambda value: search.fails(limited(value)))


def _plainer(failure: Failure, name: str, default: Any) -> Failure:
    trial, reference = failure.trial.play, failure.reference.play
    theirs = getattr(reference.config, name)
    if name in _room(trial):
        return failure.each(lambda play: _with(play, {name: _room(play)[name]}))
    if getattr(trial.config, name) != theirs:
        return replace(failure, trial=replace(failure.trial, play=_with(trial, {name: theirs})))
    return failure.each(lambda play: _with(play, {name: default}))


def _room(play: Play) -> Mapping[str, Any]:
    return room_for(play.arrivals, replace(EngineConfig(), page_size=play.config.page_size))


def _with(play: Play, changes: Mapping[str, Any]) -> Play:
    return replace(play, config=replace(play.config, **changes))


def plain_neighbours(search: Search) -> None:
    """Each neighbour as early, short and plain as it can be: greedy, never cancelled, one token id repeated."""
    for name in search.held.neighbours:
        for change in (_uncancelled, _greedy, _one_token):
            candidate = search.held.each_request((name,), change)
            if candidate != search.held:
                search.fails(candidate)
        _least(search, (name,), 1, lambda a: len(a.token_ids), _prompt)
        _least(search, (name,), 1, lambda a: a.sampling.max_tokens, _reply)
        _least(search, (name,), 0, lambda a: a.step, _step)


def start_at_once(search: Search) -> None:
    """Every play without idle steps ahead of it, and with as few steps between its arrivals as do it."""
    moved = search.held.each(_from_step_0)
    if moved != search.held:
        search.fails(moved)
    everybody = (*search.held.watched, *search.held.neighbours)
    _least(search, everybody, 0, lambda a: a.step, _step)


def shorten_the_prompt(search: Search) -> None:
    """The compared prompt as short and early as can be, with everybody who has the same one; then by itself."""
    held = search.held
    prompts = {side.request.token_ids for side in (held.trial, held.reference)}
    if len(prompts) == 1:  # A prompt that holds the head of the other's reply cannot be cut without changing both.
        alike = tuple(a.request_id for a in held.trial.play.arrivals if a.token_ids in prompts)
        _least(search, tuple(dict.fromkeys((*held.watched, *alike))), 1, lambda a: len(a.token_ids), _prompt)
        _least(search, held.watched, 1, lambda a: len(a.token_ids), _prompt)
    _least(search, held.watched, 0, lambda a: a.step, _step)


REDUCTIONS: tuple[Callable[[Search], None], ...] = (
    cut_the_reply,
    drop_neighbours,
    start_at_once,
    plain_configuration,
    tighter_limits,
    shorten_the_prompt,
    plain_neighbours,
)


def _least(
    search: Search,
    names: tuple[str, ...],
    low: int,
    size: Callable[[Arrival], int],
    cut: Callable[[Arrival, int], Arrival],
) -> None:
    """The least size of these requests that still fails, wherever they are; who is smaller already stays so."""
    start = search.held
    plays = (start.trial.play, start.reference.play)
    high = max(size(a) for play in plays for a in play.arrivals if a.request_id in names)
    least(low, high, lambda value: search.fails(start.each_request(names, lambda a: cut(a, value))))


def _prompt(arrival: Arrival, length: int) -> Arrival:
    return replace(arrival, token_ids=arrival.token_ids[:length])


def _reply(arrival: Arrival, length: int) -> Arrival:
    return replace(arrival, sampling=replace(arrival.sampling, max_tokens=min(length, arrival.sampling.max_tokens)))


def _step(arrival: Arrival, step: int) -> Arrival:
    return replace(arrival, step=min(step, arrival.step))


def _from_step_0(play: Play) -> Play:
    first = min(a.step for a in play.arrivals)
    earlier = (
        replace(a, step=a.step - first, cancel_step=None if a.cancel_step is None else a.cancel_step - first)
        for a in play.arrivals
    )
    return replace(play, arrivals=tuple(earlier))


def _uncancelled(arrival: Arrival) -> Arrival:
    return replace(arrival, cancel_step=None)


def _greedy(arrival: Arrival) -> Arrival:
    plain = SamplingParams(max_tokens=arrival.sampling.max_tokens, ignore_eos=True, seq_seed=0)
    return replace(arrival, sampling=plain, capture_logits=False)


def _one_token(arrival: Arrival) -> Arrival:
    return replace(arrival, token_ids=(0,) * len(arrival.token_ids))
