"""The records of a memory store, each with the time of its end. The store holds its lock."""

from typing import Final

NEVER: Final = (1 << 63) - 1


class Documents(dict[str, tuple[bytes, int]]):
    """The data of each record, and the time in microseconds until which it is kept."""

    def read(self, key: str, now: int) -> bytes | None:
        data, until = self.get(key, (None, 0))
        return data if now < until else None

    def write(self, key: str, data: bytes | None, before: bytes | None, until: int, now: int) -> bool:
        """Write a record that still is ``before``, and drop those that have ended."""
        if self.read(key, now) != before:
            return False
        for ended in [each for each, (_, end) in self.items() if end <= now]:
            del self[ended]
        if data is None:
            self.pop(key, None)
        else:
            self[key] = (data, until)
        return True
