"""The tokenizer of a model alone: token ids to text without weights, and without torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from detharness.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

    from detharness.checkpoints.tokenizer import Tokenizer


class Detokenizer:
    """Text of token ids, as the engine writes it. ``digest`` identifies the tokenizer.

    ``model``: a folder, a ``.gguf`` file, a Hugging Face id in the local cache, or ``smollm2-135m``. CheckpointError
    where it has no tokenizer that can be read.
    """

    def __init__(self, model: str) -> None:
        from detharness.checkpoints.locate import locate_model
        from detharness.checkpoints.tokenizer import CrossCheck, load_tokenizer_folder

        location = locate_model(model)
        if location.kind == "gguf":
            self._tokenizer = _tokenizer_of_gguf(location.path)
        else:
            self._tokenizer = load_tokenizer_folder(location.path, check=CrossCheck.SKIP)
        self.digest = self._tokenizer.digest

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of ``token_ids``; any prefix of them gives a prefix of it, but for one U+FFFD at its end."""
        return self._tokenizer.decode(token_ids)


def _tokenizer_of_gguf(path: Path) -> Tokenizer:
    import gguf
    import numpy as np

    from detharness.checkpoints.gguf_tokenizer import load_tokenizer_gguf

    try:
        with np.errstate(all="raise"):
            reader = gguf.GGUFReader(path)
    except Exception as error:  # The library raises whatever it stumbles over in a damaged file.
        raise CheckpointError(f"{path} is no GGUF file that can be read ({error}): fetch it again") from None
    return load_tokenizer_gguf(reader)
