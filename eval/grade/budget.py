"""What a reply would have been with fewer tokens: cut from the stored token ids, or not known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from detharness.eval.records import Output

_REPLACEMENT = "\ufffd"  # Half a character at the cut.


@dataclass(frozen=True)
class Budget:
    """At most ``tokens`` of a reply count. decode: token ids to text; None where no tokenizer is at hand."""

    tokens: int
    decode: Callable[[Sequence[int]], str] | None
    tokenizer_digest: str | None

    def cut(self, output: Output) -> Output | None:
        """``output`` as it would have ended at the budget, itself where it is no longer; None where nobody can know.

        Exact for a target whose tokens do not depend on the limit, since a shorter limit only ends the same sequence
        earlier. A longer reply is cut if its token ids are stored, decode to its text (but for a stop string cut from
        its end), and hold no reasoning of its own field, whose place among them is unknown. A reply whose text is
        blank stays blank at every earlier token.
        """
        count = output.completion_tokens if output.token_ids is None else len(output.token_ids)
        if count is not None and count <= self.tokens:
            return output
        if count is not None and not (output.text or "").strip():
            return replace(output, finish_reason="length")
        if output.token_ids is None or self.decode is None or output.text is None or output.reasoning is not None:
            return None
        kept = output.token_ids[: self.tokens]
        text = self.decode(kept)
        fits = self.decode(output.token_ids).startswith(output.text)
        if not fits or not output.text.startswith(text.removesuffix(_REPLACEMENT)):
            return None
        return replace(output, text=text, token_ids=kept, finish_reason="length", completion_tokens=len(kept))
