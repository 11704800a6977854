"""Where a person's caches lie."""

from __future__ import annotations

import os
from pathlib import Path


def user_cache(kind: str) -> Path | None:
    """``$DETHARNESS_CACHE``, else ``$XDG_CACHE_HOME/detharness``, else ``~/.cache/detharness``; then ``kind`` below it.

    None if there is no home folder to put it in. Nothing is created.
    """
    if override := os.environ.get("DETHARNESS_CACHE"):
        return Path(override) / kind
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return Path(xdg) / "detharness" / kind
    try:
        return Path.home() / ".cache" / "detharness" / kind
    except RuntimeError:
        return None
