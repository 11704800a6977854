"""Where an endpoint is, and the key to it: checked before anything is sent, and no message shows a secret."""

from __future__ import annotations

import os
from collections.abc import Mapping

import httpx

from detharness.errors import UsageError

KEY_VARIABLES = ("DETHARNESS_API_KEY", "OPENAI_API_KEY")
"""Where a key is looked for; the first that is set and not empty counts."""


def base_url(text: str) -> str:
    """``text`` as the base of paths, without a slash at its end. UsageError where it is none."""
    try:
        url = httpx.URL(text)
    except (httpx.InvalidURL, UnicodeError):
        url = httpx.URL("")
    if url.scheme not in ("http", "https") or not url.host:
        raise UsageError("the URL of an endpoint must be http://HOST/v1 or https://HOST/v1")
    if url.userinfo or url.query or url.fragment:  # Not shown: what stands there may be secret.
        raise UsageError(
            f"the URL of {url.host} holds a user name, password, query or fragment: remove it, and give a key in "
            f"{KEY_VARIABLES[0]}"
        )
    if url.path.strip("/") == "":
        raise UsageError(f"the URL {text!r} has no path: give the base of the API, which mostly ends in /v1")
    return str(url).rstrip("/")


def key_from_environment(environment: Mapping[str, str] = os.environ) -> str | None:
    """The API key, or None. UsageError where no header can hold it; the message does not show it."""
    for name in KEY_VARIABLES:
        if key := environment.get(name):
            if not all("!" <= character <= "~" for character in key):
                raise UsageError(f"{name} holds a space, a line break or a character beyond ASCII: set the bare key")
            return key
    return None
