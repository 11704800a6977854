"""From the TARGET argument of the command line to a target."""

from __future__ import annotations

from detharness.errors import UsageError
from detharness.targets.paths import PathTarget
from detharness.targets.protocol import ScriptedTarget

DEFAULT_TARGET = "engine:smollm2-135m"


def resolve_target(text: str, kernels: str, dtype: str, *, strict: bool = False) -> ScriptedTarget:
    """Open the target named by ``text`` under a kernel set and dtype; anything unknown is refused by its form.

    ``strict``: no slower backend in place of C++, and no kernels that fail their certificate.
    """
    kind, separator, model = text.partition(":")
    if kind == "engine" and separator and model:
        from detharness.targets.engine import EngineTarget

        return EngineTarget(model, kernels, dtype, strict=strict)
    raise UsageError(
        f"cannot probe {text!r}: a target is engine:MODEL, where MODEL is a local folder, a .gguf file, "
        "a Hugging Face id in the local cache, or smollm2-135m"
    )


def resolve_paths(text: str, dtype: str) -> PathTarget:
    """Open the transformers model named by ``text``, ``hf:MODEL``, on its library's own paths."""
    kind, _, model = text.partition(":")
    if kind == "hf" and model:
        from detharness.targets.transformers_probe import TransformersPaths

        return TransformersPaths(model, dtype)
    raise UsageError(
        f"cannot probe {text!r}: a transformers target is hf:MODEL, where MODEL is a local folder, a .gguf file, a "
        "Hugging Face id in the local cache, or smollm2-135m"
    )
