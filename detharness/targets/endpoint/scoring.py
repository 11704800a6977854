"""Teacher-forcing on a server: what it says of each token of a given text, by either of two ways that servers have.

- ``echo`` of the completions API: the prompt's own tokens come back with logprobs;
- ``prompt_logprobs`` of vLLM.

Neither is believed because a server takes the field: the tokens that come back must spell the text that was sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from detharness.targets.endpoint.completion import PATHS
from detharness.targets.endpoint.http_client import HttpClient
from detharness.targets.endpoint.json_values import at, document
from detharness.targets.endpoint.tokens import named_token, read_entries
from detharness.targets.generation import GenerationError
from detharness.targets.serving import ServedToken

_BEST = 5  # The most that OpenAI's completions API gives.
_LONGEST_TOKEN = 64  # Bytes.
_SPECIAL = 2  # The most special tokens that a vocabulary puts before a text.

_WAYS: Mapping[str, Mapping[str, Any]] = {
    "echo": {"echo": True, "logprobs": _BEST},
    "prompt_logprobs": {"prompt_logprobs": _BEST},
}


class Scorer:
    """Text scored by one server."""

    def __init__(self, client: HttpClient, model: str) -> None:
        self._client = client
        self._model = model
        self._way: str | None = None

    async def score(self, prompt: str, continuation: str) -> tuple[ServedToken, ...] | None:
        """The continuation's tokens after ``prompt``, each with its best rivals; None where no way works.

        GenerationError where the server does not answer now, or its tokens do not break where the continuation begins.
        """
        if not continuation:
            return ()
        for way in _WAYS if self._way is None else [self._way]:
            try:
                tokens = await self._ask(way, prompt + continuation)
            except GenerationError as error:
                if error.retriable and error.kind != "bad_response":
                    raise
                continue
            if tokens is not None:
                self._way = way
                return _after(tokens, prompt.encode(), continuation.encode())
        return None

    async def _ask(self, way: str, text: str) -> list[ServedToken] | None:
        """Tokens of ``text``, perhaps after special ones; None where they do not come or do not spell it."""
        body = {"model": self._model, "prompt": text, "max_tokens": 1, "temperature": 0.0, "stream": False}
        answer = document(await self._client.post(PATHS["completions"], {**body, **_WAYS[way]}))
        choices = at(answer, "choices")
        if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
            return None
        tokens = read_entries(answer, choices[0]) if way == "echo" else _prompt_logprobs(choices[0])
        if tokens is None:
            return None
        ways = [(tokens[first:], _ends(tokens[first:], text.encode())) for first in range(_SPECIAL + 1)]
        spelled = [(found, ends) for found, ends in ways if ends is not None]
        if not spelled or all(token.logprob is None for token in tokens):
            return None
        return min(spelled, key=lambda way: way[1].count(None))[0]  # Of several the one with the fewest gaps.


def _prompt_logprobs(choice: Mapping[str, Any]) -> list[ServedToken] | None:
    """One entry for each place: its own token stands first in the object of that place, its rivals follow.

    The first token of all has no entry, for nothing stands before it; a nameless one takes its place.
    """
    places = choice.get("prompt_logprobs")
    if not isinstance(places, list):
        return None
    entries = []
    for place in places:
        rivals = [
            (at(value, "decoded_token"), at(value, "logprob"), int(token) if token.isdecimal() else None)
            for token, value in (place.items() if isinstance(place, dict) else ())
        ]
        name, logprob, token_id = rivals[0] if rivals else (None, None, None)
        entries.append(named_token(name, logprob, token_id=token_id, top=(rival[:2] for rival in rivals)))
    return entries


def _ends(tokens: Sequence[ServedToken], text: bytes) -> list[int | None] | None:
    """Where each token ends in ``text``, until all of it is spelled; None where they spell another text.

    A token that is no text by itself, as a part of a character, shows no bytes: a run of such takes what stands before
    the next token that does, and where it breaks within is not known.
    """
    ends: list[int | None] = []
    reached, hidden = 0, 0
    for token in tokens:
        if token.raw is None:
            if reached + hidden >= len(text):
                break
            hidden += 1
            ends.append(None)
            continue
        start = text.find(token.raw, reached + hidden, reached + hidden * _LONGEST_TOKEN + len(token.raw))
        if start < 0:
            break
        if hidden:
            ends[-1] = start
        reached, hidden = start + len(token.raw), 0
        ends.append(reached)
    if hidden and len(text) <= reached + hidden * _LONGEST_TOKEN:  # The text ends within a run.
        ends[-1] = reached = len(text)
    return ends if reached == len(text) else None


def _after(tokens: Sequence[ServedToken], prompt: bytes, continuation: bytes) -> tuple[ServedToken, ...]:
    """Those of ``tokens`` that spell the continuation."""
    ends = _ends(tokens, prompt + continuation) or []
    for index, end in enumerate([0, *ends]):
        if end == len(prompt):
            return tuple(tokens[index : len(ends)])
    raise GenerationError(
        "bad_response", "the server's tokens of the text do not break where the continuation begins", retriable=False
    )
