"""Any OpenAI-compatible endpoint as a generation target: chat completions over HTTP."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from detharness.targets.endpoint.address import base_url, key_from_environment
from detharness.targets.endpoint.chat_completion import read_reply, request_body
from detharness.targets.endpoint.http_client import HttpClient, Limits
from detharness.targets.endpoint.model_card import CARD_LIMITS, ModelCard, read_card
from detharness.targets.generation import GenerationError, GenerationRequest, Message, Reply

# Who a server says owns its model -> the fields by which it tells more. Others may refuse a request for such a field.
_MORE: Mapping[str, Mapping[str, Any]] = {
    "vllm": {"return_token_ids": True, "logprobs": True},
    "sglang": {"logprobs": True},
    "llamacpp": {"logprobs": True},
}


class OpenAIEndpoint:
    """The model ``model`` behind the base ``url``; nothing is sent before something is asked.

    details: also ask for token ids and logprobs, where the model card names a server that is known to have them.
    The key comes from the environment alone. UsageError for a URL or a key that cannot be used.
    """

    def __init__(
        self,
        url: str,
        model: str,
        *,
        details: bool = False,
        accepts_images: bool = True,
        limits: Limits | None = None,
    ) -> None:
        self._url = base_url(url)
        self._model = model
        self._details = details
        self._accepts_images = accepts_images
        self._key = key_from_environment()
        self._client = HttpClient(self._url, limits=limits or Limits(), key=self._key)
        self._card: ModelCard | None = None
        self._reading_card = threading.Lock()
        self._fingerprints: list[str] = []

    @property
    def accepts_images(self) -> bool:
        """Whether images are sent; a server without sight refuses them."""
        return self._accepts_images

    @property
    def context_length(self) -> int | None:
        """Tokens of the context, from the model card; UsageError where the server cannot be reached."""
        return self._model_card().context_length

    @property
    def fingerprints(self) -> tuple[str, ...]:
        """Each ``system_fingerprint`` that came with a reply so far. More than one: the server changed meanwhile."""
        return tuple(self._fingerprints)

    def describe(self) -> dict[str, Any]:
        """URL, model, and the model card; UsageError where the server cannot be reached.

        Fingerprints are not in it: they come with replies, and a target is described before its first.
        """
        card = self._model_card()
        return {
            "form": "openai",
            "url": self._url,
            "model": self._model,
            "server": card.owner,
            "context_length": card.context_length,
            "asks_for": sorted(self._extra(card)),
        }

    def count_prompt_tokens(self, messages: Sequence[Message]) -> int | None:
        """None: the server alone could count them."""
        return None

    async def generate(self, request: GenerationRequest) -> Reply:
        """One reply, in one piece."""
        if not self._accepts_images and any(map(_has_image, request.messages)):
            raise GenerationError("refused", "this endpoint is not sent images", retriable=False)
        extra = self._extra(await asyncio.to_thread(self._model_card)) if self._details else {}
        body = await self._client.post("/chat/completions", request_body(self._model, request, extra))
        reply, fingerprint = read_reply(body, self._client.secrets.quote)
        if fingerprint is not None and fingerprint not in self._fingerprints:
            self._fingerprints.append(fingerprint)
        return reply

    async def close(self) -> None:
        """Close every connection."""
        await self._client.close()

    def _extra(self, card: ModelCard) -> Mapping[str, Any]:
        return _MORE.get(card.owner or "", {}) if self._details else {}

    def _model_card(self) -> ModelCard:
        """The card, read once. In a thread of its own, for callers come with an event loop and without."""
        with self._reading_card:
            if self._card is None:
                with ThreadPoolExecutor(1) as thread:
                    self._card = thread.submit(asyncio.run, self._read_card()).result()
            return self._card

    async def _read_card(self) -> ModelCard:
        client = HttpClient(self._url, limits=CARD_LIMITS, key=self._key)
        try:
            return await read_card(client, self._url, self._model)
        finally:
            await client.close()


def _has_image(message: Message) -> bool:
    content = message.get("content")
    return isinstance(content, list) and any(part.get("type") == "image_url" for part in content)
