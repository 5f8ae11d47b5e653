"""Read a login from a credential provider of redis-py, in a thread: a provider may ask a cloud service."""

from __future__ import annotations

import asyncio
from typing import Any

from redis.credentials import CredentialProvider

from ...background import run_once
from ..address import Address
from .connect import left


class BoundedCredentials(CredentialProvider):
    """Waits for a provider until the deadline. The thread goes on, so a provider that caches serves the next call."""

    def __init__(self, provider: CredentialProvider, deadline: float) -> None:
        self._provider = provider
        self._deadline = deadline

    def get_credentials(self) -> Any:
        return run_once(("credentials", id(self._provider)), self._provider.get_credentials).result(
            left(self._deadline)
        )

    async def get_credentials_async(self) -> Any:
        if type(self._provider).get_credentials_async is not CredentialProvider.get_credentials_async:
            return await self._provider.get_credentials_async()
        result = run_once(("credentials", id(self._provider)), self._provider.get_credentials)
        return await asyncio.wrap_future(result)


def credentials(address: Address, deadline: float = 0.0) -> dict[str, Any]:
    """The options of redis-py that log in to a server of an address."""
    if address.credential_provider is None:
        return {"username": address.username, "password": address.password}
    return {"credential_provider": BoundedCredentials(address.credential_provider, deadline)}
