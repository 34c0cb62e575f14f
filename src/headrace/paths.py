"""Where Headrace keeps things on this machine: a cache that may be deleted, and state that may not."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def cache_directory() -> Path:
    """Downloads and checksums. `HEADRACE_CACHE` moves it."""
    return Path(os.environ.get("HEADRACE_CACHE") or platformdirs.user_cache_dir("headrace"))


def state_directory() -> Path:
    """Offsets of pipelines without a store of their own, and running dev servers. `HEADRACE_STATE` moves it."""
    return Path(os.environ.get("HEADRACE_STATE") or platformdirs.user_state_dir("headrace"))
