"""From the --target of an evaluation to what answers it."""

from __future__ import annotations

from detharness.errors import UsageError
from detharness.targets.generation import GenerationTarget


def resolve_generation(
    text: str, *, model: str | None, kernels: str, dtype: str, strict: bool = False, timeout: float | None = None
) -> GenerationTarget:
    """Open the target named by ``text``; UsageError for an unknown form.

    model: the model's name at an endpoint, and for an endpoint only. kernels, strict: of the engine. dtype: of the
    engine and of transformers. timeout: seconds that an endpoint has for one reply, None for the client's own limit.
    """
    kind, _, name = text.partition(":")
    if kind in ("http", "https"):
        if not model:
            raise UsageError("an endpoint serves models by name: give --model beside --target")
        from detharness.targets.endpoint.http_client import Limits
        from detharness.targets.endpoint.openai_endpoint import OpenAIEndpoint

        return OpenAIEndpoint(text, model, details=True, limits=Limits() if timeout is None else Limits(total=timeout))
    if model is not None:
        raise UsageError("--model is the model's name at an endpoint: leave it out, or give an endpoint as --target")
    if kind == "engine" and name:
        from detharness.targets.engine import EngineTarget
        from detharness.targets.engine_generation import EngineGeneration

        return EngineGeneration(EngineTarget(name, kernels, dtype, strict=strict))
    if kind == "hf" and name:
        from detharness.targets.transformers_generation import TransformersGeneration

        return TransformersGeneration(name, dtype)
    raise UsageError(
        f"cannot ask {text!r}: a target is engine:MODEL, hf:MODEL, or an OpenAI-compatible base URL "
        "(http.../v1); MODEL is a local folder, a .gguf file, a Hugging Face id in the local cache, or smollm2-135m"
    )
