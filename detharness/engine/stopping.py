"""When a sequence ends, and which text may be shown before that is known."""

from __future__ import annotations

from detharness.engine.sequence import Sequence


def advance(sequence: Sequence, token_id: int, end_tokens: frozenset[int], max_positions: int) -> str:
    """Append a drawn token, set ``finish_reason`` if it ends the sequence; return the text that became certain.

    An end token or stop id stays in ``token_ids``; a stop string is cut from the text, and
    is what ended it even where its last character came out with an end token. Text that may still turn
    out to be the start of a stop string is held back. Reaching the model's context ends with "length".
    """
    sampling = sequence.request.sampling
    sequence.tokens.append(token_id)
    at_end = token_id in sampling.stop_token_ids or (token_id in end_tokens and not sampling.ignore_eos)
    at_limit = sequence.generated >= sampling.max_tokens or len(sequence.tokens) >= max_positions
    if not at_end:
        sequence.text += sequence.detokenizer.push(token_id)
    if at_end or at_limit:
        sequence.text += sequence.detokenizer.flush()
    if sampling.stop:
        found = [(at, text) for text in sampling.stop if (at := sequence.text.find(text)) >= 0]
        if found:
            at, text = min(found)
            sequence.text = sequence.text[:at]
            sequence.finish_reason, sequence.stop_reason = "stop", text
            return _show(sequence, at)
    if at_end:
        sequence.finish_reason, sequence.stop_reason = "stop", token_id
        return _show(sequence, len(sequence.text))
    if at_limit:
        sequence.finish_reason = "length"
        return _show(sequence, len(sequence.text))
    return _show(sequence, len(sequence.text) - _held_back(sequence.text, sampling.stop))


def _held_back(text: str, stops: tuple[str, ...]) -> int:
    """Length of the longest end of ``text`` that is a proper beginning of a stop string."""
    longest = max((len(stop) - 1 for stop in stops), default=0)
    for length in range(min(longest, len(text)), 0, -1):
        if any(stop.startswith(text[-length:]) for stop in stops):
            return length
    return 0


def _show(sequence: Sequence, upto: int) -> str:
    text = sequence.text[sequence.streamed : upto]
    sequence.streamed = max(sequence.streamed, upto)
    return text
