"""A server's own tokeniser, where it has one: found by trying, and believed when it works."""

from __future__ import annotations

from detharness.targets.endpoint.http_client import Below, HttpClient
from detharness.targets.endpoint.json_values import at, count, document, each
from detharness.targets.generation import GenerationError

# Beside the API's base or below it; the text is called ``prompt`` by vLLM and SGLang, ``content`` by llama.cpp.
_PLACES: tuple[tuple[Below, str], ...] = (
    ("root", "prompt"),
    ("root", "content"),
    ("base", "prompt"),
    ("base", "content"),
)


class ServerTokenizer:
    """``/tokenize`` of one server."""

    def __init__(self, client: HttpClient, model: str) -> None:
        self._client = client
        self._model = model
        self._place: tuple[Below, str] | None = None
        self._absent = False

    async def tokenize(self, text: str) -> tuple[int, ...] | None:
        """Token ids of ``text`` alone, without special tokens around it; None where the server has no tokeniser.

        GenerationError where it has one or may have one, and it does not answer now.
        """
        if self._absent:
            return None
        if self._place is not None:
            return await self._ask(self._place, text)
        lost = None
        for place in _PLACES:
            try:
                ids = await self._ask(place, text)
            except GenerationError as error:
                lost = error if error.retriable and error.kind != "bad_response" else lost
                continue
            if ids is not None:
                self._place = place
                return ids
        if lost is not None:
            raise lost
        self._absent = True
        return None

    async def _ask(self, place: tuple[Below, str], text: str) -> tuple[int, ...] | None:
        below, name = place
        body = {"model": self._model, name: text, "add_special_tokens": False, "add_special": False}
        answer = document(await self._client.post("/tokenize", body, below=below))
        ids, told = each(at(answer, "tokens"), count), count(at(answer, "count"))
        if ids is None or bool(ids) != bool(text):  # A server that reads the other name finds no text.
            return None
        return tuple(ids) if told is None or told == len(ids) else None
