"""From the TARGET argument of the command line to a target."""

from __future__ import annotations

from detharness.errors import UsageError
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
