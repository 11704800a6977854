"""What a server can do, found by trying: a field that is accepted is not believed until it works.

Each test asks a few short replies, alone; ``judgements`` says what they prove.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from detharness.probes.serving import judgements
from detharness.probes.serving.asking import Asker
from detharness.probes.serving.judgements import Judgement, Status
from detharness.probes.serving.position import parting
from detharness.probes.serving.prompts import text_request
from detharness.targets.serving import Api, GenerationError, ServedReply, ServedRequest

MOST_REQUESTS = 17
TOP = 5
_TOKENS = 24
_QUESTION = "Describe a morning at a small harbour in a few sentences, and then the same harbour in a storm."
_GOODS = ("pears", "plums", "apples", "quinces", "cherries", "figs", "grapes", "limes", "melons", "dates")
_LEDGER = " ".join(f"Line {line}: {line * 37 % 101} crates of {_GOODS[line % 10]} went out." for line in range(30))


class PlainRequestError(Exception):
    """The server does not answer the simplest request; ``cause`` came instead."""

    def __init__(self, cause: GenerationError) -> None:
        super().__init__(str(cause))
        self.cause = cause


@dataclass(frozen=True)
class Capability:
    """One thing that a server may do."""

    name: str
    status: Status
    detail: str

    def as_record(self) -> dict[str, Any]:
        """Plain values for a record and the report."""
        return {"name": self.name, "status": self.status, "detail": self.detail}


@dataclass(frozen=True)
class Capabilities:
    """All that was tried, in the order of trying."""

    all: tuple[Capability, ...]

    def works(self, name: str) -> bool:
        """Whether ``name`` was shown to work."""
        return any(one.name == name and one.status == "works" for one in self.all)

    def equip(self, request: ServedRequest) -> ServedRequest:
        """``request`` with everything that says more about its reply."""
        top = TOP if self.works("logprobs") else None
        return replace(request, token_ids_back=self.works("token ids"), logprobs=top)


async def find_capabilities(asker: Asker, api: Api, nonce: str) -> Capabilities:
    """Try everything with at most ``MOST_REQUESTS`` requests.

    nonce: makes a prompt that no cache holds yet. PlainRequestError where nothing works at all; Halted.
    """
    tests = _Tests(asker, api, nonce)
    await tests.run()
    return Capabilities(tuple(tests.found))


class _Tests:
    def __init__(self, asker: Asker, api: Api, nonce: str) -> None:
        self._asker = asker
        self._api = api
        self._nonce = nonce
        self._plain = text_request(api, _QUESTION, max_tokens=_TOKENS)
        self._full = self._plain
        self.found: list[Capability] = []

    async def run(self) -> None:
        """Every test in a fixed order: later ones ask for what earlier ones found."""
        plain = await self._asker.ask(self._plain)
        if plain.error is not None:
            raise PlainRequestError(plain.error)
        shown = await self._details()
        again = await self._reply(self._full)
        stable = shown is not None and again is not None and parting(shown, again) is None
        seen = shown or plain.reply
        if seen is None:
            raise AssertionError("unreachable: a reply or an error came")
        self._add("bytes", judgements.judge_bytes(seen))
        self._add("usage", judgements.judge_usage(seen, _TOKENS))
        hot, seed = replace(self._full, temperature=1.0), int(self._nonce, 16)
        arms = [replace(hot, seed=seed), replace(hot, seed=seed), hot, hot, replace(hot, seed=seed + 1)]
        self._add("seed", judgements.judge_seed([await self._reply(one) for one in arms], stable=stable))
        streamed = await self._reply(replace(self._full, stream=True))
        self._add("streaming", judgements.judge_stream(seen, streamed, stable=stable))
        await self._cache(stable)
        tokens = await self._asker.tokenize("two words")
        self._add("tokenize", ("works", f"{len(tokens)} tokens") if tokens else ("absent", "text cannot be tokenized"))
        self._add("score", judgements.judge_score(await self._asker.score("One, two, three,", " four, five")))
        name = seen.fingerprint
        self._add("fingerprint", ("absent", "none is given") if name is None else ("works", name))

    def _add(self, name: str, judgement: Judgement) -> None:
        self.found.append(Capability(name, *judgement))

    async def _reply(self, request: ServedRequest) -> ServedReply | None:
        return (await self._asker.ask(request)).reply

    async def _details(self) -> ServedReply | None:
        """Ids and logprobs, each asked for alone, for a server may refuse one; then a reply with all that it takes."""
        asked: dict[str, dict[str, Any]] = {"token ids": {"token_ids_back": True}, "logprobs": {"logprobs": TOP}}
        judges = {"token ids": judgements.judge_ids, "logprobs": judgements.judge_logprobs}
        for name, fields in asked.items():
            answer = await self._asker.ask(replace(self._plain, **fields))
            if answer.reply is None:
                self._add(name, ("absent", f"asking for them is refused: {answer.error}"))
                continue
            judgement = judges[name](answer.reply)
            self._add(name, judgement)
            if judgement[0] == "works":
                self._full = replace(self._full, **fields)
        return await self._reply(self._full)

    async def _cache(self, stable: bool) -> None:
        text = f"Ledger {self._nonce}. {_LEDGER} Which line is the strangest, and why?"
        long = replace(self._full, **_prompt_of(text_request(self._api, text, max_tokens=_TOKENS)))
        cold, warm = await self._reply(long), await self._reply(long)
        if cold is None or warm is None:
            for name in ("prefix cache", "warm prefix", "cache salt"):
                self._add(name, ("not_tested", "a long prompt got no reply"))
            return
        cache = judgements.judge_cache(cold, warm)
        hit = cache[0] == "works"
        self._add("prefix cache", cache)
        self._add("warm prefix", judgements.judge_warm(cold, warm, hit=hit, stable=stable))
        if not hit:
            self._add("cache salt", ("not_tested", "it shows only where a cache does"))
            return
        salted = replace(long, cache_salt=f"detharness-{self._nonce}")
        self._add("cache salt", judgements.judge_salt(await self._reply(salted), await self._reply(salted)))


def _prompt_of(request: ServedRequest) -> dict[str, Any]:
    return {"messages": request.messages, "prompt": request.prompt}
