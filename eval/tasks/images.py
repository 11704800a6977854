"""Images of a data file: kept by digest in the records, sent as the data URIs they are."""

from __future__ import annotations

import base64
import binascii
import re
from typing import Any

from detharness.errors import UsageError
from detharness.records.digests import sha256_bytes

_DATA_URI = re.compile(r"data:(image/[A-Za-z0-9.+-]+);base64,(.+)")


def image_part(uri: str, where: str) -> dict[str, Any]:
    """The part of a recorded message that stands for the image ``uri``; UsageError for what is no image data URI."""
    match = _DATA_URI.fullmatch(uri)
    try:
        content = base64.b64decode(match[2], validate=True) if match else b""
    except (binascii.Error, ValueError):
        content = b""
    if not content:
        raise UsageError(f"{where}: image must be a data URI (data:image/...;base64,...), not {uri!r:.40}")
    return {"type": "image", "digest": sha256_bytes(content), "uri_digest": sha256_bytes(uri.encode())}
