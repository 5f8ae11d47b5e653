"""``Readiness``: whether the store replies. Every client may ask, so it is called once a second at most."""

import logging
from typing import Final

from ...clock import monotonic
from ...errors import RateLimitError
from ...stores import Store

_SECONDS: Final = 1.0
_log = logging.getLogger("ratelimit_mw")


class Readiness:
    """Keeps the last result for a second. The log has the reason of a failure, once for each outage."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._due_at = 0.0
        self._is_ready = self._is_logged = False

    async def is_ready(self) -> bool:
        """Return whether the store replies, or has replied a second ago."""
        if monotonic() >= self._due_at:
            self._due_at = monotonic() + _SECONDS
            try:
                await self._store.aping()
            except RateLimitError as error:
                if not self._is_logged:
                    _log.warning("/readyz: store %s unreachable (%s)", self._store.name, error)
                self._is_ready, self._is_logged = False, True
            else:
                self._is_ready, self._is_logged = True, False
        return self._is_ready
