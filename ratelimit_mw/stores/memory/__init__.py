"""The memory store. It counts for the threads of one process."""

from .store import MemoryStore

__all__ = ["MemoryStore"]
