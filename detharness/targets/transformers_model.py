"""A local model as transformers opens it, with our own prompting, so that only the computing differs from the engine.

It is left as the library makes it: where a vocabulary has padded rows, they may be drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, GenerationConfig

from detharness.checkpoints.chat_template import DEFAULT_DATE, ChatTemplate, load_template_folder, load_template_gguf
from detharness.checkpoints.checkpoint import model_digest
from detharness.checkpoints.end_tokens import parse_end_tokens
from detharness.checkpoints.gguf_file import GgufFile
from detharness.checkpoints.gguf_tokenizer import load_tokenizer_gguf
from detharness.checkpoints.locate import ModelLocation, locate_model
from detharness.checkpoints.tokenizer import Tokenizer, load_tokenizer_folder
from detharness.errors import CheckpointError, RequestError, UsageError
from detharness.rendering.escape import one_line
from detharness.targets.generation import Message

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class TransformersModel:
    """``name`` (a folder, a ``.gguf`` file, an id in the local cache, or ``smollm2-135m``) in ``dtype`` fp32 or bf16.

    Nothing is fetched, and no code that a model brings is run. UsageError or CheckpointError where it cannot be opened.
    """

    def __init__(self, name: str, dtype: str) -> None:
        if dtype not in _DTYPES:
            raise UsageError(f"transformers runs in {' or '.join(_DTYPES)} here, not in {dtype}")
        self.name = name
        self.dtype = dtype
        self._location = locate_model(name)
        self._digest = model_digest(self._location)
        self.tokenizer, self._template = _prompting(self._location)
        self.module = _load(self._location, _DTYPES[dtype])
        stated = parse_end_tokens(self.module.generation_config.eos_token_id, "the generation config")
        self.end_tokens = tuple(dict.fromkeys((*stated, *self.tokenizer.eos_token_ids)))
        # A request says everything; no penalty or filter slips in from a file.
        self.module.generation_config = GenerationConfig()

    @property
    def context_length(self) -> int:
        """Tokens of the model's context, prompt and reply together."""
        return int(self.module.config.get_text_config().max_position_embeddings)

    @property
    def backend(self) -> str:
        """The library with its version."""
        return f"transformers {transformers.__version__}"

    @property
    def attention(self) -> str:
        """The attention implementation that the library chose."""
        return str(self.module.config._attn_implementation)

    def render(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Token ids of a conversation by the model's own chat template; RequestError where it has none."""
        if self._template is None:
            raise RequestError(f"{self.name} has no chat template: give a model that has one")
        return self._template.render(messages, self.tokenizer).token_ids

    def describe(self) -> dict[str, Any]:
        """Digests, end tokens, the template with the date it was told, precision, version and attention."""
        template = self._template
        return {
            "form": "transformers",
            "model": self.name,
            "kind": self._location.kind,
            "model_digest": self._digest,
            "tokenizer_digest": self.tokenizer.digest,
            "eos_token_ids": list(self.end_tokens),
            "context_length": self.context_length,
            "chat_template": template and {"digest": template.digest, "date": DEFAULT_DATE.isoformat()},
            "backend": self.backend,
            "attention": self.attention,
            "dtype": self.dtype,
        }


def _prompting(location: ModelLocation) -> tuple[Tokenizer, ChatTemplate | None]:
    if location.kind == "safetensors":
        return load_tokenizer_folder(location.path), load_template_folder(location.path)
    file = GgufFile(location.path)
    return load_tokenizer_gguf(file.reader), load_template_gguf(file.reader)


def _load(location: ModelLocation, dtype: torch.dtype) -> Any:
    """The model as transformers makes it of local files, if every weight is there."""
    path = location.path
    folder, options = (path, {}) if location.kind == "safetensors" else (path.parent, _dense_gguf(path))
    try:
        with redirect_stderr(StringIO()):  # Progress bars, of which not all can be switched off.
            model, found = AutoModelForCausalLM.from_pretrained(
                folder,
                dtype=dtype,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                output_loading_info=True,
                **options,
            )
    except Exception as error:  # It raises whatever it stumbles over.
        raise CheckpointError(f"transformers cannot open {path}: {one_line(str(error)):.300}") from None
    if missing := sorted(found["missing_keys"]):  # It would fill them at random and go on.
        raise CheckpointError(
            f"transformers finds {len(missing)} weights missing in {path}, first {missing[0]}: fetch the model again"
        )
    return model.eval()


def _dense_gguf(path: Path) -> dict[str, Any]:
    """Options that open a GGUF file as the plain model. Newer versions may keep weights packed, in fetched kernels."""
    options: dict[str, Any] = {"gguf_file": path.name}
    if hasattr(transformers, "GgufConfig"):
        options["quantization_config"] = transformers.GgufConfig(dequantize=True)
    return options
