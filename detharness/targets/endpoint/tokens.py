"""Logprob entries and token ids of one choice, in each shape that servers give them.

- chat: ``logprobs.content``, a list of {token, logprob, bytes, top_logprobs}, with ``id`` by llama.cpp;
- completions: ``logprobs`` with the columns tokens, token_logprobs and top_logprobs;
- llama.cpp's own: ``completion_probabilities``, entries as in chat;
- SGLang's own: ``meta_info`` with triples (logprob, id, text).

An odd number or text leaves a hole in its entry; an entry is never dropped, so that places keep their index.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping
from typing import Any

from detharness.targets.endpoint.json_values import at, count, each, number, text
from detharness.targets.serving import ServedToken

_NAMED_BY_ID = re.compile(r"token_id:(\d{1,15})")  # vLLM's answer to ``return_tokens_as_token_ids``.
_REPLACEMENT = "\ufffd"

ID_SOURCES = ("token_ids", "tokens", "meta_info", "logprobs")
"""Where ids are looked for, in this order. "logprobs": in each entry, as ``id`` or as "token_id:N"."""


def read_entries(document: Mapping[str, Any], choice: Mapping[str, Any]) -> list[ServedToken] | None:
    """The entries of ``choice``; None where it has none in any shape."""
    logprobs = choice.get("logprobs")
    for entries in (at(logprobs, "content"), choice.get("completion_probabilities"), _native(document)):
        if isinstance(entries, list):
            return [_entry(one) for one in entries]
    if isinstance(logprobs, dict) and isinstance(logprobs.get("tokens"), list):
        return _columns(logprobs)
    triples = _triples(document, choice)
    return None if triples is None else _from_triples(triples, _info(document, choice))


def read_ids(document: Mapping[str, Any], choice: Mapping[str, Any], source: str) -> list[int] | None:
    """Token ids from one of ID_SOURCES but the entries; None where it holds none, or other than ids."""
    if source == "token_ids":
        return each(choice.get("token_ids"), count)
    if source == "tokens":
        return each(choice.get("tokens", document.get("tokens")), count)
    triples = _triples(document, choice)
    return None if triples is None else each([triple[1] for triple in triples], count)


def ids_of_entries(entries: Iterable[ServedToken]) -> list[int] | None:
    """The id of every entry; None where one has none."""
    return each([entry.token_id for entry in entries], count)


def named_token(
    name: object, logprob: object, *, raw: object = None, token_id: object = None, top: Iterable[object] = ()
) -> ServedToken:
    """An entry from what a server says of it, whatever that is."""
    shown = text(name) or ""
    if named := _NAMED_BY_ID.fullmatch(shown):
        return ServedToken(shown, None, int(named[1]), number(logprob), _best(top))
    return ServedToken(shown, _raw(shown, raw), count(token_id), number(logprob), _best(top))


def _entry(entry: object) -> ServedToken:
    best = at(entry, "top_logprobs")
    return named_token(
        at(entry, "token"),
        at(entry, "logprob"),
        raw=at(entry, "bytes"),
        token_id=at(entry, "id"),
        top=((at(one, "token"), at(one, "logprob")) for one in (best if isinstance(best, list) else ())),
    )


def _columns(logprobs: Mapping[str, Any]) -> list[ServedToken]:
    """An entry for every one of ``tokens``; the other columns may be short, or no lists."""
    names = logprobs["tokens"]
    columns = [logprobs.get(name) for name in ("token_logprobs", "top_logprobs")]
    values, tops = (column if isinstance(column, list) else [] for column in columns)
    rows = itertools.zip_longest(names, values[: len(names)], tops[: len(names)])
    return [named_token(name, value, top=top.items() if isinstance(top, dict) else ()) for name, value, top in rows]


def _from_triples(triples: list[list[Any]], info: Mapping[str, Any]) -> list[ServedToken]:
    tops = info.get("output_top_logprobs")
    rows = itertools.zip_longest(triples, tops[: len(triples)] if isinstance(tops, list) else ())
    return [
        named_token(
            triple[2],
            triple[0],
            token_id=triple[1],
            top=((one[2], one[0]) for one in (top if isinstance(top, list) else ()) if _is_triple(one)),
        )
        for triple, top in rows
    ]


def _info(document: Mapping[str, Any], choice: Mapping[str, Any]) -> Mapping[str, Any]:
    info = choice.get("meta_info", document.get("meta_info"))
    return info if isinstance(info, dict) else {}


def _triples(document: Mapping[str, Any], choice: Mapping[str, Any]) -> list[list[Any]] | None:
    triples = _info(document, choice).get("output_token_logprobs")
    return triples if isinstance(triples, list) and all(map(_is_triple, triples)) else None


def _is_triple(value: object) -> bool:
    return isinstance(value, list) and len(value) == 3


def _native(document: Mapping[str, Any]) -> Any:
    return document.get("completion_probabilities")


def _raw(shown: str, given: object) -> bytes | None:
    """The token's bytes: those that were given, or its text's, where that stands for them."""
    values = each(given, count)
    if values is not None and all(value < 256 for value in values):
        return bytes(values)
    return shown.encode() if shown and _REPLACEMENT not in shown else None


def _best(pairs: Iterable[Any]) -> tuple[tuple[str, float], ...]:
    """(text, logprob) of those that have both, best first; what ties stays in the server's order."""
    read = ((text(name), number(value)) for name, value in pairs)
    known = [(name, value) for name, value in read if name is not None and value is not None]
    return tuple(sorted(known, key=lambda pair: -pair[1]))
