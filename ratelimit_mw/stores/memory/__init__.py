"""The memory store: the threads of one process count together."""

from .store import MemoryStore

__all__ = ["MemoryStore"]
