"""From a base URL and its options to a server that probes can ask, and from a folder to a tokenizer for its replies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from detharness.errors import UsageError
from detharness.targets.serving import Api, ServingTarget


def check_serving(url: str, headers: Sequence[str]) -> None:
    """UsageError for a URL, a header or a key in the environment that cannot be used; nothing is sent."""
    from detharness.targets.endpoint.address import base_url, key_from_environment
    from detharness.targets.endpoint.headers import parse_headers

    base_url(url)
    parse_headers(headers)
    key_from_environment()


def resolve_serving(url: str, model: str, *, api: Api, headers: Sequence[str], timeout: float) -> ServingTarget:
    """The server behind ``url``. Called inside the event loop that will use it; nothing is sent yet.

    headers: "Name: value" of every request. timeout: seconds that one reply may take.
    """
    from detharness.targets.endpoint.http_client import Limits
    from detharness.targets.endpoint.served import ServedEndpoint

    limits = Limits(total=timeout, stall=min(timeout, Limits().stall))
    return ServedEndpoint(url, model, api=api, headers=headers, limits=limits)


def local_tokenizer(folder: Path) -> Callable[[str], tuple[int, ...]]:
    """The tokenizer of a Hugging Face folder, without special tokens; UsageError where there is none."""
    from detharness.checkpoints.tokenizer import CrossCheck, load_tokenizer_folder

    if not folder.is_dir():
        raise UsageError(f"--tokenizer {folder} is no folder: name one that holds tokenizer.json")
    return load_tokenizer_folder(folder, check=CrossCheck.SKIP).encode_rendered
