"""What a few replies prove of a server: pure judgements, each a status and the sentence that goes with it.

works: shown here. absent: it says so, or nothing came. ignored: taken in silence, without effect or wrongly.
not_tested: the server shows too little to tell.
"""

from __future__ import annotations

from typing import Literal

from detharness.probes.serving.comparison import compare
from detharness.probes.serving.position import parting, token_count
from detharness.targets.serving import ServedReply, ServedToken

Status = Literal["works", "absent", "ignored", "not_tested"]
Judgement = tuple[Status, str]


def judge_ids(reply: ServedReply) -> Judgement:
    """Ids, believed where there are as many as the server counts tokens."""
    if reply.token_ids is None:
        return "ignored", "asked for by every known name, none came"
    counted = reply.completion_tokens
    if counted is not None and counted != len(reply.token_ids):
        return "ignored", f"{len(reply.token_ids)} ids came for {counted} tokens, so they are not used"
    return "works", f"by {reply.token_ids_by}" if reply.token_ids_by else "they come with every reply"


def judge_logprobs(reply: ServedReply) -> Judgement:
    """Logprobs, believed where every token has a number and not all are 0."""
    if not reply.tokens:
        return "ignored", "asked for, none came"
    numbers = [token.logprob for token in reply.tokens]
    if any(number is None for number in numbers):
        return "ignored", "some are no numbers"
    if all(number == 0.0 for number in numbers):
        return "ignored", "every one is 0"
    rivals = min(len(token.top) for token in reply.tokens)
    return "works", f"with the {rivals} best at each place" if rivals > 1 else "of the chosen tokens alone"


def judge_bytes(reply: ServedReply) -> Judgement:
    """Whether the entries' bytes spell the text."""
    if not reply.tokens:
        return "not_tested", "there are no logprob entries"
    pieces = [token.raw for token in reply.tokens if token.raw is not None]
    if len(pieces) < len(reply.tokens):
        return "absent", f"{len(reply.tokens) - len(pieces)} of {len(reply.tokens)} entries have none"
    text = ((reply.reasoning or "") + reply.text).encode("utf-8", "surrogatepass")
    if b"".join(pieces) == text or (reply.finish_reason == "stop" and b"".join(pieces[:-1]) == text):
        return "works", "the entries spell the text"
    return "ignored", "the entries spell another text"


def judge_usage(reply: ServedReply, most: int) -> Judgement:
    """Counts of tokens that are possible under a limit of ``most``."""
    if reply.completion_tokens is None or reply.prompt_tokens is None:
        return "absent", "tokens are not counted"
    if not 0 < reply.completion_tokens <= most:
        return "ignored", f"it counts {reply.completion_tokens} tokens where at most {most} can be"
    return "works", f"{reply.prompt_tokens} prompt tokens, {reply.completion_tokens} of the reply"


def judge_seed(arms: list[ServedReply | None], *, stable: bool) -> Judgement:
    """Arms at temperature 1: one seed twice, no seed twice, another seed. stable: those at 0 are equal."""
    replies = [reply for reply in arms if reply is not None]
    if len(replies) < len(arms):
        return "absent", "a request with a seed, or at temperature 1, got no reply"
    first, second, free, free_again, other = replies
    control = "replies at temperature 0 are equal" if stable else "replies at temperature 0 differ, too"
    if parting(first, second) is not None:
        return "ignored", f"equal seeds gave different replies; {control}"
    if parting(free, free_again) is None:
        return "not_tested", f"without a seed, replies at temperature 1 are equal, too; {control}"
    if parting(first, other) is None:
        return "ignored", f"two seeds gave one reply; {control}"
    return "works", f"equal seeds give equal replies, another seed another one; {control}"


def judge_stream(whole: ServedReply, streamed: ServedReply | None, *, stable: bool) -> Judgement:
    """Whether a stream holds what the whole reply holds."""
    if streamed is None:
        return "absent", "a stream was asked for, and no reply came"
    if streamed.chunks is None:
        return "ignored", "a stream was asked for, and one piece came"
    if not stable:
        return "not_tested", "replies at temperature 0 differ without streams, too"
    found = parting(whole, streamed)
    if found is not None:
        return "ignored", f"the stream differs from the whole reply at token {found.index}"
    names = {"ids": (whole.token_ids, streamed.token_ids), "logprobs": (whole.tokens, streamed.tokens)}
    lost = [name for name, (mine, theirs) in names.items() if mine is not None and theirs is None]
    pieces = f"{token_count(streamed)} tokens in {streamed.chunks} pieces"
    return "works", f"the text is equal, {' and '.join(lost)} are left out" if lost else f"equal; {pieces}"


def judge_cache(cold: ServedReply, warm: ServedReply) -> Judgement:
    """Whether a prompt that was asked before is found again, by the server's own count."""
    if warm.cached_tokens is None:
        return "not_tested", "cached tokens are not told"
    if warm.cached_tokens <= (cold.cached_tokens or 0):
        return "absent", f"the same prompt again found {warm.cached_tokens} cached tokens"
    of = "" if warm.prompt_tokens is None else f" of {warm.prompt_tokens}"
    return "works", f"{warm.cached_tokens}{of} prompt tokens were found the second time"


def judge_warm(cold: ServedReply, warm: ServedReply, *, hit: bool, stable: bool) -> Judgement:
    """Whether the reply after a hit is the one before it."""
    seen = compare(cold, warm, greedy=True)
    if not hit and warm.cached_tokens is not None:
        return "not_tested", "nothing was found in a cache"
    if not stable:
        return "not_tested", "replies at temperature 0 differ anyway"
    when = "after a hit" if hit else "the second time"
    if seen.parting is not None:
        return "ignored", f"the reply {when} differs from token {seen.parting.index} on"
    if seen.first_logprob is not None:
        return "ignored", f"the text {when} is equal, logprobs moved by up to {seen.max_gap:.2g}"
    if not hit:
        return "not_tested", "the second reply equals the first; whether it was a hit is not told"
    return "works", "text and logprobs are those of before the hit" if cold.tokens else "the text is that of before"


def judge_salt(first: ServedReply | None, again: ServedReply | None) -> Judgement:
    """Whether a new salt keeps a known prompt from the cache, and the same salt lets it in."""
    if first is None or again is None:
        return "absent", "a request with a salt got no reply"
    apart, found = first.cached_tokens or 0, again.cached_tokens or 0
    seen = f"{apart} cached tokens under a new salt, {found} under the same again"
    return ("works" if apart < found else "ignored"), seen


def judge_score(scored: tuple[ServedToken, ...] | None) -> Judgement:
    """Whether text is scored with numbers."""
    if not scored:
        return "absent", "text cannot be scored"
    if any(token.logprob is None for token in scored):
        return "ignored", "some scores are no numbers"
    return "works", f"{len(scored)} tokens, at least {min(len(token.top) for token in scored)} rivals each"
