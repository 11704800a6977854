"""What a server says of itself and of a model: its list of models, and its version where it is known to tell one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from detharness.errors import UsageError
from detharness.targets.endpoint.address import KEY_VARIABLES
from detharness.targets.endpoint.http_client import HttpClient, Limits
from detharness.targets.endpoint.json_values import at, count, document, text
from detharness.targets.generation import GenerationError

CARD_LIMITS = Limits(total=30.0, stall=10.0, body=16 * 2**20)

_VERSION_AT: Mapping[str, tuple[str, str]] = {
    "vllm": ("/version", "version"),
    "sglang": ("/get_server_info", "version"),
    "llamacpp": ("/props", "build_info"),
}
_LONGEST_VERSION = 200  # Characters.


@dataclass(frozen=True)
class ModelCard:
    """What ``/models`` says of a model; None where it does not say. listed: whether it is in the list at all."""

    owner: str | None = None
    context_length: int | None = None
    listed: bool | None = None


async def read_card(client: HttpClient, url: str, model: str) -> ModelCard:
    """The card of ``model``, an empty one where there is none. UsageError where the server cannot be reached."""
    try:
        body = await client.get("/models")
    except GenerationError as error:
        if error.kind == "http_401":
            raise UsageError(f"{url} lets nobody in with this key ({error}): set {KEY_VARIABLES[0]}") from None
        if error.retriable or error.kind in ("tls", "too_large"):  # A manifest must not hang on a bad moment.
            raise UsageError(f"{url} cannot be asked for its models: {error}") from None
        return ModelCard()  # It has no list of models, or none for this key.
    return card_in(model, body)


def card_in(model: str, body: bytes) -> ModelCard:
    """The card of ``model`` in a list of models; an empty one where the list is none or does not have it."""
    try:
        cards = at(document(body), "data")
    except GenerationError:
        return ModelCard()
    if not isinstance(cards, list):
        return ModelCard()
    for card in cards:
        if at(card, "id") == model:
            length = count(at(card, "max_model_len")) or count(at(card, "meta", "n_ctx"))
            return ModelCard(owner=text(at(card, "owned_by")), context_length=length or None, listed=True)
    return ModelCard(listed=False)


async def read_version(client: HttpClient, owner: str | None) -> str | None:
    """The version of a server of a known kind, where it tells one."""
    if owner is None or owner not in _VERSION_AT:
        return None
    path, name = _VERSION_AT[owner]
    try:
        version = text(at(document(await client.get(path, below="root")), name))
    except GenerationError:
        return None
    return None if version is None else client.secrets.conceal(version)[:_LONGEST_VERSION]
