"""Plays what was planned: sends each request when it is due, and compares each watched reply as it comes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from detharness.probes.contexts import parting as parting_context
from detharness.probes.serving.asking import Answer, Asker
from detharness.probes.serving.budget import Budget, Halted
from detharness.probes.serving.capabilities import Capabilities
from detharness.probes.serving.comparison import Comparison, compare, margins
from detharness.probes.serving.durations import Durations
from detharness.probes.serving.journal import REPLIES, TRIALS, Journal
from detharness.probes.serving.outputs import Outputs, printable, reply_record
from detharness.probes.serving.plays import Ask, Play
from detharness.probes.serving.position import whole_text
from detharness.probes.serving.prompts import Prompt
from detharness.targets.serving import ServedReply


class Session:
    """A run in progress: the references of its prompts, and what was found to differ from them."""

    def __init__(
        self,
        asker: Asker,
        budget: Budget,
        capabilities: Capabilities,
        prompts: tuple[Prompt, ...],
        journal: Journal,
        nonce: str,
    ) -> None:
        self.outputs = {prompt.id: Outputs() for prompt in prompts}
        self.lateness = Durations()
        self._asker = asker
        self._budget = budget
        self._capabilities = capabilities
        self._prompts = {prompt.id: prompt for prompt in prompts}
        self._journal = journal
        self._nonce = nonce
        self._salted = capabilities.works("cache salt")
        self._number = 0
        self._told_apart: set[tuple[str, str, int]] = set()

    async def play(self, play: Play) -> None:
        """Send everything of ``play`` and wait for what was sent; Halted where the run ended meanwhile."""
        self._asker.doing = play.level
        within: dict[str, ServedReply] = {}
        if play.pace == "one by one":
            for ask in play.asks:
                await self._send(play, ask, within)
        elif play.pace == "closed loop":
            waiting = deque(play.asks)
            await _together(self._work(play, waiting, within) for _ in range(play.limit or 1))
        else:
            await self._arrive(play, within)

    async def _work(self, play: Play, waiting: deque[Ask], within: dict[str, ServedReply]) -> None:
        while waiting:
            await self._send(play, waiting.popleft(), within)

    async def _arrive(self, play: Play, within: dict[str, ServedReply]) -> None:
        """Everything at its time, whether or not anything has come back; a burst has one time for all."""
        loop = asyncio.get_running_loop()
        start = loop.time()
        sent: list[asyncio.Task[None]] = []

        async def send(ask: Ask) -> None:
            self.lateness.add(loop.time() - start - ask.at)
            await self._send(play, ask, within)

        try:
            for ask in play.asks:
                if start + ask.at > loop.time():
                    await self._budget.sleep_until(start + ask.at)
                sent.append(asyncio.create_task(send(ask)))
        finally:
            await _all_of(sent)

    async def _send(self, play: Play, ask: Ask, within: dict[str, ServedReply]) -> None:
        self._number += 1
        number = self._number
        salt = (
            (f"{self._nonce}/{number}" if ask.salt is None else f"{self._nonce}/{ask.salt}") if self._salted else None
        )
        request = replace(ask.request, cache_salt=salt)
        answer = await self._asker.ask(self._capabilities.equip(request) if ask.prompt is not None else request)
        where = {"request": number, "play": play.name, "prompt": ask.prompt, "label": ask.label}
        if answer.reply is None:
            error = answer.error
            kind = "unknown" if error is None else error.kind
            row = {"kind": "error", **where, "error": kind, "message": str(error), "tries": answer.tries}
            self._journal.add(REPLIES, row)
            self._journal.add(TRIALS, {**row, "level": play.level})
            return
        if ask.label is not None:
            within[ask.label] = answer.reply
        self._journal.add(REPLIES, {"kind": "reply", **where, "beside": answer.beside, **reply_record(answer.reply)})
        if ask.prompt is None or play.role == "warm-up":
            self._journal.add(TRIALS, {"kind": "load", "request": number, "play": play.name})
        else:
            self._judge(play, ask, number, answer, answer.reply, within)

    def _judge(
        self, play: Play, ask: Ask, number: int, answer: Answer, reply: ServedReply, within: Mapping[str, ServedReply]
    ) -> None:
        """Record what a watched reply is compared with and what was found; the first one alone is the reference."""
        prompt = self._prompts[ask.prompt or ""]
        outputs = self.outputs[prompt.id]
        if play.role == "cache":
            reference = None if ask.against is None else within.get(ask.against)
            if reference is None:
                return
            counters = _cache_counters(ask, reply, reference, within)
            confounded = False
        elif outputs.reference is None:
            if play.role == "solo":
                outputs.reference = reply
                self._record_reference(prompt, number, reply)
            return
        else:
            reference = outputs.reference
            counters = _company(play, answer)
            told = None not in (reply.cached_tokens, reference.cached_tokens)
            confounded = play.axis is not None and told and reply.cached_tokens != reference.cached_tokens
        comparison = compare(reference, reply, greedy=prompt.greedy)
        row: dict[str, Any] = {
            "kind": "trial",
            "request": number,
            "play": play.name,
            "role": play.role,
            "axis": play.axis,
            "level": ask.label or play.level,
            "prompt": prompt.id,
            "exercised": counters,
            "confounded": confounded,
            "comparison": comparison.as_record(reply.prompt_tokens),
            "finish_reason": reply.finish_reason,
            "fingerprint": reply.fingerprint,
            "output": None,
            "text": None,
            "context": None,
        }
        if play.role != "cache":  # Behind a fresh prefix, it is a reply to another prompt.
            row["output"], new = outputs.place(reply)
            row["text"] = printable(whole_text(reply)) if new else None
        row["context"] = self._context(row, reference, reply, comparison)
        self._journal.add(TRIALS, row)

    def _record_reference(self, prompt: Prompt, number: int, reply: ServedReply) -> None:
        index, _ = self.outputs[prompt.id].place(reply)
        self._journal.add(
            TRIALS,
            {
                "kind": "reference",
                "request": number,
                "prompt": prompt.id,
                "output": index,
                "text": printable(whole_text(reply)),
                "prompt_tokens": reply.prompt_tokens,
                "cached_tokens": reply.cached_tokens,
                "fingerprint": reply.fingerprint,
                "margins": margins(reply),
            },
        )

    def _context(
        self, row: Mapping[str, Any], reference: ServedReply, reply: ServedReply, comparison: Comparison
    ) -> dict[str, str] | None:
        """Both continuations, the first time that this output parts from its reference."""
        if comparison.parting is None:
            return None
        seen = (row["prompt"], row["level"], -1 if row["output"] is None else row["output"])
        if seen in self._told_apart:
            return None
        self._told_apart.add(seen)
        return parting_context(printable(whole_text(reference)), printable(whole_text(reply)))


def _company(play: Play, answer: Answer) -> dict[str, Any]:
    """Counters of who was there: a solo reply that had company, or a loaded one that had none, proves nothing."""
    if play.role == "solo":
        return {} if answer.beside else {"alone": 1}
    return {"beside": answer.beside, "most_beside": [answer.beside]} if answer.beside else {}


def _cache_counters(
    ask: Ask, reply: ServedReply, reference: ServedReply, within: Mapping[str, ServedReply]
) -> dict[str, Any]:
    """Counters of a hit that is fuller than the reference's; nothing where the server does not tell of one."""
    if reply.cached_tokens is None or reply.cached_tokens <= (reference.cached_tokens or 0):
        return {}
    begun = within.get("begun")
    if ask.label == "partial" and (begun is None or (reference.cached_tokens or 0) <= (begun.cached_tokens or 0)):
        return {}
    return {"cached_tokens": reply.cached_tokens, "cached_before": reference.cached_tokens or 0}


async def _together(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    await _all_of([asyncio.create_task(work) for work in works])


async def _all_of(tasks: list[asyncio.Task[None]]) -> None:
    """Wait for all; then raise what one of them raised. A fault of ours ends the others, a halt lets them end."""
    try:
        results = await asyncio.gather(*tasks, return_exceptions=True)
    except asyncio.CancelledError:
        for task in tasks:
            task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)
        raise
    faults = [result for result in results if isinstance(result, BaseException)]
    others = [fault for fault in faults if not isinstance(fault, Halted)]
    if faults:
        raise (others or faults)[0]
