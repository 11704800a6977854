"""After the load: distinct outputs looked at once more, where the server can count or score their tokens.

At most so many outputs are looked at, each with a few requests; the run's plan names the number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from detharness.probes.serving.asking import Asker
from detharness.probes.serving.capabilities import Capabilities
from detharness.probes.serving.outputs import Outputs, printable
from detharness.probes.serving.position import Parting, by_tokenizer, parting, whole_text
from detharness.probes.serving.prompts import Prompt
from detharness.targets.serving import ServedReply, ServedToken

Tokenize = Callable[[str], tuple[int, ...]]

_BEYOND = 40  # Characters of a continuation that are scored behind the parting.


class Locator:
    """Says more about where an output parts from its reference, and how firm each side's choice was there.

    tokenizer: a local one, asked where the server has none.
    """

    def __init__(self, asker: Asker, capabilities: Capabilities, tokenizer: Tokenize | None) -> None:
        self._asker = asker
        self._capabilities = capabilities
        self._tokenizer = tokenizer

    async def look(
        self, prompts: Mapping[str, Prompt], outputs: Mapping[str, Outputs], most: int
    ) -> list[dict[str, Any]]:
        """Rows of at most ``most`` outputs, a first one of every prompt before second ones; Halted."""
        waiting = [
            (number, name, index, reply)
            for name, found in outputs.items()
            for number, (index, reply) in enumerate(sorted(found.examples.items()))
            if found.reference is not None and reply is not found.reference
        ]
        rows = []
        for _, name, index, reply in sorted(waiting, key=lambda one: one[0])[:most]:
            reference = outputs[name].reference
            found = None if reference is None else parting(reference, reply)
            if reference is not None and found is not None:
                rows.append(await self._row(prompts[name], index, found, reference, reply))
        return rows

    async def _row(
        self, prompt: Prompt, index: int, found: Parting, reference: ServedReply, reply: ServedReply
    ) -> dict[str, Any]:
        if found.method == "bytes":
            found = await self._by_tokens(found, reference, reply)
        return {
            "kind": "located",
            "prompt": prompt.id,
            "output": index,
            "method": found.method,
            "index": found.index,
            "interval": list(found.interval),
            "byte_offset": found.byte_offset,
            "forced": await self._forced(prompt, found, reference, reply),
        }

    async def _by_tokens(self, found: Parting, reference: ServedReply, reply: ServedReply) -> Parting:
        texts = [whole_text(reference), whole_text(reply)]
        texts = [_common(texts[0], found), *texts]
        if self._capabilities.works("tokenize"):
            counted = [await self._asker.tokenize(text) for text in texts]
            ids = [one for one in counted if one is not None]
            if len(ids) == len(counted):
                return by_tokenizer(found, ids[0], ids[1], ids[2], "server tokenizer")
        if self._tokenizer is not None:
            ids = [self._tokenizer(text) for text in texts]
            return by_tokenizer(found, ids[0], ids[1], ids[2], "local tokenizer")
        return found

    async def _forced(
        self, prompt: Prompt, found: Parting, reference: ServedReply, reply: ServedReply
    ) -> dict[str, Any] | None:
        """Both continuations as the server scores them behind the raw prompt; None where it cannot.

        A conversation is rendered by the server, so its raw prompt is not known here.
        """
        offset = found.byte_offset
        if prompt.request.prompt is None or offset is None or not self._capabilities.works("score"):
            return None
        sides = {}
        for side, text in (("reference", whole_text(reference)), ("other", whole_text(reply))):
            continuation = text[: len(_common(text, found)) + _BEYOND]
            scored = await self._asker.score(prompt.request.prompt, continuation) if continuation else None
            token = None if scored is None else _at(scored, offset)
            if token is None:
                return None
            sides[side] = _scored(token)
        return sides


def _common(text: str, found: Parting) -> str:
    """The text before the byte offset; a character that the offset cuts is left out."""
    data = text.encode("utf-8", "surrogatepass")[: found.byte_offset]
    return data.decode("utf-8", "ignore")


def _at(scored: tuple[ServedToken, ...], offset: int) -> ServedToken | None:
    """The token that holds the byte at ``offset``."""
    end = 0
    for token in scored:
        end += len(token.text.encode("utf-8", "surrogatepass") if token.raw is None else token.raw)
        if end > offset:
            return token
    return None


def _scored(token: ServedToken) -> dict[str, Any]:
    """The token, its logprob, the gap of the two best there, and how far it lies behind the best."""
    best = token.top[0][1] if token.top else None
    return {
        "token": printable(token.text),
        "logprob": token.logprob,
        "margin": best - token.top[1][1] if best is not None and len(token.top) > 1 else None,
        "behind_best": None if best is None or token.logprob is None else max(0.0, best - token.logprob),
    }
