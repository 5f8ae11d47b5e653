"""The URLs of the stores that are built in, on the servers of the tests."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import memcached_handles
import redis_handles
from servers import HOST

PATIENT = 10_000_000
URLS: dict[str, Callable[[Callable[[str], Any], Path], str]] = {
    "memory": lambda server, folder: "memory://",
    "lmdb": lambda server, folder: f"lmdb://{folder}/counts?size=16MiB",
    "redis": lambda server, folder: redis_handles.address(server("redis_server")),
    "cluster": lambda server, folder: f"redis+cluster://{HOST}:{server('nodes')[0].port}",
    "memcached": lambda server, folder: memcached_handles.address(server("memcached_server")),
    "postgres": lambda server, folder: f"postgresql://postgres@{HOST}:{server('postgres_server').port}/postgres",
}
"""The functions take a function that returns a fixture, and a folder."""
