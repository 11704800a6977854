"""One comparison of a folder's ``tokenizer.json`` with what ``transformers.AutoTokenizer`` makes of the folder."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import tokenizers

# Touches what broken conversions get wrong: digit groups, contractions, runs of spaces and newlines, CJK, emoji,
# combining marks, code, and a leading space.
PROBE_TEXT = (
    " Hello, World! It's 12345 + 6.78e9 = I'LL see\n\n  def f(x):\n\treturn x**2   # done\r\n"
    "naïve cafe\u0301 \u4f60\u597d\uff0c\u4e16\u754c \ud55c\uad6d\uc5b4 \u0e44\u0e17\u0e22 "
    "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467 \u2581 http://a.b/c?d=e&f  "
)


def cross_check(folder: Path) -> str | None:
    """A sentence if ``AutoTokenizer`` gives other ids for a fixed text, or cannot be asked; None if they agree.

    Imports transformers (seconds). ``tokenizer.json`` itself is used either way. Nothing is downloaded and no code
    of the folder is run.
    """
    own = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    own.no_truncation()
    own.no_padding()
    try:
        with _quiet():
            from transformers import AutoTokenizer

            other = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
            theirs = {added: list(other(PROBE_TEXT, add_special_tokens=added)["input_ids"]) for added in (False, True)}
    except Exception as error:  # Any failure of another library's loader: it says nothing about our ids.
        reason = " ".join(str(error).split())[:160]
        return f"tokenizer: transformers.AutoTokenizer cannot load this folder ({type(error).__name__}: {reason})"
    for added, ids in theirs.items():
        ours = own.encode(PROBE_TEXT, add_special_tokens=added).ids
        if ours != ids:
            first = next(
                (i for i, (a, b) in enumerate(zip(ours, ids, strict=False)) if a != b), min(len(ours), len(ids))
            )
            kind = "with special tokens" if added else "without special tokens"
            return (
                f"tokenizer: transformers.AutoTokenizer gives other ids than tokenizer.json ({kind}, from token "
                f"{first} of a fixed text); tokenizer.json is used"
            )
    return None


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide warnings of transformers, among them its false alarm on the regex of Mistral's tokenizers."""
    logger = logging.getLogger("transformers")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
