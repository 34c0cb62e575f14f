"""Where offsets are kept. One system per file."""

from headrace.stores.base import OffsetStore
from headrace.stores.memory import Memory
from headrace.stores.sqlite import SQLite

__all__ = ["Memory", "OffsetStore", "SQLite"]
