"""The limiter of a running application, with the store and the rules that its workers have."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from ..clock import SECOND
from ..errors import StoreError
from ..limiter.limiter import Limiter
from ..stores import Store, redacted_url
from .output import Failure
from .source import Source

_TIMEOUT_US: Final = 3 * SECOND
"""The shortest time that a call may wait for the store. A command has more time than a request."""
_SHARED: Final = (
    "Use the admin page of Django or the admin API of `ratelimit-mw serve`, or set a store that processes share,"
    " such as redis://localhost:6379/0 or lmdb:///var/lib/app/ratelimit"
)


@contextmanager
def open_limiter(source: Source, may_be_memory: bool = False) -> Iterator[Limiter]:
    """Open a limiter with the rules and the store of a source. Its calls may wait longer than those of requests.

    Raises:
        Failure: The store does not reply, or is an LMDB that does not exist or belongs to another user. ``memory://``,
            which no other process can reach, is one too, unless it ``may_be_memory``. Then nothing is asked.
    """
    own = source.limits.limiter if source.limits else None
    settings = source.running_settings
    store = settings.store
    if own and (not isinstance(store, str) or redacted_url(store) != redacted_url(own.store)):
        store = own.store  # an object of the application
    if not may_be_memory and redacted_url(store).startswith(("memory:", "MemoryStore")):
        raise own_memory("the store", _SHARED)
    settings = replace(settings, store_timeout=max(settings.store_timeout, _TIMEOUT_US), observers=(), traffic_log=None)
    limiter = Limiter((), store, own._clock if own else None, settings)
    _check_files(limiter.store)
    limiter.rules = source.rules
    try:
        if not may_be_memory:
            limiter.store.start()
        yield limiter
    except StoreError as error:
        raise Failure(f"{redacted_url(store)} failed: {error}. `check --connect` examines its servers") from error
    finally:
        limiter.close()


def own_memory(place: str, hint: str) -> Failure:
    """Return the error for a store or a log in the memory of the application."""
    return Failure(f"{place} memory:// is in each process of your application, so a command cannot reach it. {hint}")


def _check_files(store: Store) -> None:
    """Raise ``Failure`` for an LMDB that is missing, or of another user: files of this user would lock that user out.

    LMDB creates a missing environment, and a new one after a crash of the machine.
    """
    path = getattr(store, "path", None)
    if not store.name.startswith("lmdb:") or path is None:
        return
    try:
        owner = (Path(path) / "data.mdb").stat().st_uid
    except PermissionError:
        raise Failure(f"this user may not open {store.name}. Run the command as the user of the application") from None
    except OSError:
        hint = "Check the path, or start the application that creates it"
        raise Failure(f"{store.name} does not exist. {hint}") from None
    if owner != os.geteuid():
        raise Failure(f"{store.name} belongs to the user {owner}. Run the command as this user: sudo -u '#{owner}' ...")
